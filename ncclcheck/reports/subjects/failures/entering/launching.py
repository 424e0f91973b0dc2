"""What ssh, srun, a join and our own first step say when a node cannot be entered, and what fixes it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from ncclcheck.probes.facts import Silence
from ncclcheck.reports.judgement.findings import Evidence, Finding, Owner, Remedy, Where, admin, seen, unknown, you

NOTHING_KNOWN = "No agent ran there, so nothing is known of this node: it is neither ready nor broken."
FELL_SILENT = "What this node did last is known, and no more: it is neither ready nor broken."


@dataclass(frozen=True, kw_only=True)
class LaunchCause:
    """Words that are recognised. Texts may use {node} and the groups of the pattern.

    begun: only of a node whose agent had spoken, or only of one whose had not; None: of both. shared: it befell
    the whole step, and no node is to blame. guess: what may be behind it, until somebody knocks at the node.
    by_prolog: Slurm's prolog failed there, and takes the job back on all nodes.
    """

    pattern: str
    what: str
    owner: Owner
    fix: tuple[Remedy, ...]
    why: str = NOTHING_KNOWN
    begun: bool | None = None
    shared: bool = False
    guess: str = ""
    by_prolog: bool = False
    regex: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "regex", re.compile(self.pattern, re.MULTILINE))

    def match(self, silence: Silence) -> re.Match[str] | None:
        """The words in what was said of a node."""
        if self.begun not in (None, bool(silence.last_step)):
            return None
        return self.regex.search(silence.detail)

    def stated(self, silence: Silence, match: re.Match[str]) -> str:
        """What is known, without the guess."""
        return self.what.format(**_groups(silence, match))

    def finding(self, silence: Silence, match: re.Match[str], *evidence: Evidence) -> Finding:
        """What is wrong with a node of which these words were said."""
        safe = {name: shlex.quote(value) for name, value in _groups(silence, match).items()}
        line = silence.detail[silence.detail.rfind("\n", 0, match.start()) + 1 :].split("\n", 1)[0].strip()
        return unknown(
            Where() if self.shared else Where(node=silence.node),
            f"{self.stated(silence, match)}: {self.guess}" if self.guess else self.stated(silence, match),
            why=self.why,
            owner=self.owner,
            evidence=[seen(_source(silence, line), line), *evidence],
            fix=[
                Remedy(
                    who=remedy.who,
                    text=remedy.text,
                    commands=[command.format(**safe) for command in remedy.commands],
                )
                for remedy in self.fix
            ],
        )


def _groups(silence: Silence, match: re.Match[str]) -> dict[str, str]:
    return {name: value or "" for name, value in match.groupdict().items()} | {"node": silence.node}


def _source(silence: Silence, line: str) -> str:
    """Who said a line: a program that begins it with its name, else the process that spoke for the node."""
    named = re.match(r"(srun|slurmstepd|ncclcheck)\b", line)
    return named[1] if named else silence.via.replace("agent", "") or "its process"


TRY = "ssh -o BatchMode=yes {node} true"
_LOG_OF_SSHD = "journalctl -u ssh -u sshd | tail -20"
_SAME_VERSION = "Install the same version on that node, for this very interpreter, or run from a shared folder."

SLOW_LOGIN_WHY = "Each start by ssh waits for it; launchers that give a login 10 s or less fail now and then."
SLOW_LOGIN = (
    you(
        "See how long a login takes: the wait before `Authentications that can continue`.",
        "time ssh -v -o BatchMode=yes {node} true",
    ),
    admin(
        "Let sshd ask no name server (UseDNS no, which is its default), or repair the name servers there.",
        "sshd -T | grep -i usedns; grep -n nameserver /etc/resolv.conf   # on {node}",
        "time getent hosts 192.0.2.1; time id   # on {node}: a name server, LDAP",
        "sed -i.before -E 's/^([[:space:]]*UseDNS[[:space:]]+)yes/\\1no/I' /etc/ssh/sshd_config && "
        "{{ systemctl reload ssh || systemctl reload sshd; }}   # on {node}",
    ),
)
OWN_WORDS = (
    LaunchCause(
        pattern=r"^ncclcheck: .*: it answered, but nothing large came through: (?P<said>.+)",
        what="it answered, but nothing large came through (path MTU): {said}",
        owner="site",
        fix=(
            you("See which size passes, larger and smaller.", "ping -M do -c 3 -s 1472 {node}"),
            admin(
                "Give all hosts, switch ports and tunnels between the two the same MTU. Until then let what goes "
                "there, and what comes back, be as small as what passed: this changes the route to it alone, and "
                "`ip route del ADDRESS` undoes it.",
                """a=$(getent ahosts "$(ssh -G {node} | awk '/^hostname /{{print $2}}')" | """
                """awk '{{print $1; exit}}'); """
                """ip route replace $a $(ip -o route get $a | sed -E 's/^[^ ]+ //; s/ (src|uid) .*//') """
                "mtu lock 576   # here",
            ),
        ),
        why="A switch port or a tunnel on the path drops large packets silently: ssh and any job hang there.",
    ),
    LaunchCause(
        pattern=r"^ncclcheck: .*: no interpreter (?P<python>.+) there",
        what="{python}, the interpreter of this side, is not there",
        owner="job",
        fix=(
            you(
                "Make the same environment on that node, or start ncclcheck from one that all nodes share.",
                "ls -l {python}",
            ),
            you("For containers that run on the hosts, enter them with --via 'docker exec NAME'."),
        ),
    ),
    LaunchCause(
        pattern=r"^(?:EOFError: marshal data too short|ValueError: bad marshal|ImportError: bad magic).*",
        what="a compiled Python file (.pyc) there is damaged, as by a full disk or by ulimit -f",
        owner="node",
        fix=(
            you(
                "See that there is room and no limit, and remove the compiled files of what it was importing.",
                "ssh {node} 'ulimit -f; df -h .'",
                "find DIRECTORY -name '*.pyc' -delete   # on {node}; DIRECTORY of the last File line",
            ),
        ),
        why="Python does not compile it anew: every program that imports it fails until it is removed.",
    ),
    LaunchCause(
        pattern=r"^ncclcheck: .*: no ncclcheck \S+ there that .*?; tight limits: (?P<limits>.+)",
        what="Python cannot start ncclcheck there, for its limits are too tight: {limits}",
        owner="job",
        fix=(
            you(
                "Lift them in the login shell there (.bashrc, .profile), as far as the hard ones let.",
                "ssh {node} ulimit -a",
            ),
            admin("Take the hard limits away.", "grep -v '^#' /etc/security/limits.conf /etc/security/limits.d/*"),
        ),
        why="A job that is started alike gets the same limits, and torch needs far more than ncclcheck.",
    ),
    LaunchCause(
        pattern=(
            r"^ncclcheck: .*: no ncclcheck (?P<version>\S+) there that (?P<python>.+?) can import: (?P<error>.*)"
        ),
        what="no ncclcheck there: {error}",
        owner="job",
        fix=(you(_SAME_VERSION, "{python} -m pip install ncclcheck=={version}"),),
    ),
    LaunchCause(
        pattern=(
            r"^ncclcheck: .*: (?P<said>ncclcheck \S+ there speaks protocol \d+, (?P<version>\S+) here speaks \d+)"
        ),
        what="another ncclcheck there: {said}",
        owner="job",
        fix=(you("Install the same version on all nodes.", "python3 -m pip install ncclcheck=={version}"),),
        why="The two versions are incompatible, so nothing is known of this node.",
    ),
)

SSH = (
    LaunchCause(
        pattern=r"^Cannot execute command-line and remote command",
        what="ssh's settings here have a RemoteCommand for it, so that ssh runs no other command there",
        owner="job",
        fix=(
            you(
                "Take RemoteCommand (and RequestTTY) out of its Host block, or give it another name for that.",
                "ssh -G {node} | grep -E '^(remotecommand|requesttty)'",
                "grep -nsi -B4 remotecommand ~/.ssh/config /etc/ssh/ssh_config /etc/ssh/ssh_config.d/*.conf",
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^bind (?P<address>\S+): (?P<said>.+)",
        what="ssh's settings let it start from {address} (BindAddress), which this host does not have: {said}",
        owner="job",
        fix=(
            you(
                "Take BindAddress out, or name an address of this host.",
                "ip -br addr   # here",
                "grep -nsi -B4 bindaddress ~/.ssh/config /etc/ssh/ssh_config /etc/ssh/ssh_config.d/*.conf",
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^ssh: Could not resolve hostname (?P<name>\S+): Address family for hostname not supported",
        what="ssh's settings here allow it another family of addresses than {name} is of (AddressFamily)",
        owner="job",
        fix=(
            you(
                "Take AddressFamily out, or let the name have an address of that family.",
                "ssh -G {node} | grep addressfamily",
                "grep -nsi -B4 addressfamily ~/.ssh/config /etc/ssh/ssh_config /etc/ssh/ssh_config.d/*.conf",
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^Permissions \d+ for '(?P<file>[^'\n]+)' are too open",
        what="ssh does not use your private key {file}: others may read it",
        owner="job",
        fix=(you("Let nobody else read it.", "chmod 600 {file}", TRY),),
    ),
    LaunchCause(
        pattern=r"^@ +WARNING: UNPROTECTED PRIVATE KEY FILE",
        what="ssh does not use your private key: others may read it",
        owner="job",
        fix=(you("Let nobody else read it.", "chmod 600 ~/.ssh/id_*", TRY),),
    ),
    LaunchCause(
        pattern=(
            r"^ncclcheck: .*: its sshd takes (?P<seconds>\d+) s and more between the key exchange and the login"
        ),
        what="its sshd takes {seconds} s and more to look at a login: it waits for a name server, for LDAP or PAM",
        owner="node",
        fix=SLOW_LOGIN,
        why=SLOW_LOGIN_WHY,
        begun=False,
    ),
    LaunchCause(
        pattern=(
            r"^(?P<said>.*(?:Bad owner or permissions on|Bad configuration option|terminating, \d+ bad conf)"
            r".*)"
        ),
        what="ssh does not accept its own settings on this side: {said}",
        owner="job",
        fix=(you("Correct the file and line that it names.", TRY),),
    ),
    LaunchCause(
        pattern=r"^.*Too many authentication failures",
        what="sshd ended the login after too many keys that it does not know",
        owner="job",
        fix=(
            you(
                "Offer the right key alone: IdentityFile and IdentitiesOnly yes in ~/.ssh/config.",
                "ssh -o BatchMode=yes -o IdentitiesOnly=yes -i KEY {node} true",
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^(?:WARNING: Your password has expired|Password change required|You (?:are|must) .*password)",
        what="the password of this account has expired there, so that no command runs",
        owner="job",
        fix=(you("Log in by hand and set a new one.", "ssh -t {node} true"),),
    ),
    LaunchCause(
        pattern=r"^ssh-keygen -L: certificate (?P<file>.+) is valid (?P<valid>from .+), for (?P<age>\d+ min)$",
        what="sshd does not take your certificate {file}, which by the clock here became valid only {age} ago: "
        "its clock is behind by more than that, or it does not know the certificate's CA or principal ({valid})",
        owner="node",
        fix=(
            admin(
                "Compare its clock with this one, and set it.",
                "date; timedatectl; chronyc tracking",
                "chronyc makestep",
            ),
            you(
                "If the clocks agree, see which CA and principals it knows.",
                "ssh-keygen -L -f {file} | grep -E 'Valid|Principals' -A1",
            ),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^ssh-keygen -L: certificate (?P<file>.+) is valid (?P<valid>from .+)",
        what="sshd does not take your certificate {file}, which is valid {valid}",
        owner="job",
        fix=(
            you(
                "Compare these dates with the clock, and have it signed anew if it is over.",
                "date; ssh-keygen -L -f {file} | grep -E 'Valid|Principals' -A1",
            ),
            admin(
                "If they are right: a wrong clock on that node, or a principal or a CA that it does not know.",
                "timedatectl; sshd -T | grep -iE 'trustedusercakeys|authorizedprincipals'",
            ),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^ssh -v: .*no mutual signature algorithm.*|^ssh -v: Skipping \S+ key (?P<file>\S+) - .*",
        what="the key that ssh has for it is of a kind that the other side takes no signature of",
        owner="job",
        fix=(
            you(
                "Make a key of a kind that all take, and put it there.",
                "ssh-keygen -t ed25519",
                "ssh-copy-id {node}",
            ),
            admin("Or let sshd take the old kind.", "sshd -T | grep -i pubkeyaccepted"),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^ssh -v: Remote: .*bad ownership or modes for (?:directory |file )?(?P<what>.+)",
        what="sshd does not read the keys there: others may write {what}",
        owner="node",
        fix=(you("Take the right to write from group and others, on that node.", "chmod go-w {what}"),),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^ssh -v: Authenticated to .*\n(?:.*\n)*?ssh -v: channel \d+: open failed: (?P<said>.*)",
        what="the login works, and its sshd opens no session for it (MaxSessions 0): {said}",
        owner="node",
        fix=(
            admin(
                "Let sshd open sessions, and let it read its settings again; undo: the copy of the file.",
                "sshd -T | grep -i maxsessions   # on {node}",
                "grep -rsniE '^[[:space:]]*MaxSessions' /etc/ssh/sshd_config /etc/ssh/sshd_config.d   # on {node}",
                "sed -i.before -E 's/^([[:space:]]*MaxSessions[[:space:]]+)[0-9]+/\\110/' /etc/ssh/sshd_config && "
                "{{ systemctl reload ssh || systemctl reload sshd; }}   # on {node}",
            ),
            you("Until then exclude it; a host of this kind forwards ports only, as a jump host does."),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^ssh -v: no key was offered",
        what="ssh has no key to offer to it, and no other method of authentication is allowed",
        owner="job",
        fix=(
            you(
                "Name the key in ~/.ssh/config (IdentityFile), or load it into the agent.",
                "ssh-add -l; ssh -G {node} | grep -E '^(identityfile|identitiesonly|identityagent)'",
            ),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^ssh-keygen -y: (?P<file>.+) cannot be read without its passphrase",
        what="the private key {file} here has a passphrase, no ssh-agent holds it, and in a run nobody is asked "
        "for one; the node would accept the key",
        owner="job",
        fix=(
            you(
                "Load it into an agent in this shell, which asks for the passphrase once; or name a key without "
                "one in ~/.ssh/config (IdentityFile).",
                'eval "$(ssh-agent)" && ssh-add {file}',
                TRY,
            ),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=(
            r"^.*: Permission denied \((?P<said>[^)]*)\)[\s\S]{0,2000}?"
            r"^ssh -v: keys that were offered: (?P<keys>.+)"
        ),
        what="ssh is not let in: permission denied ({said}); it offered {keys}",
        owner="job",
        fix=(
            you(
                "Put one of these public keys there, or name the right key in ~/.ssh/config (IdentityFile).",
                "ssh-copy-id {node}",
                TRY,
            ),
            admin("If the key is there, see why sshd refuses it: its kind, or who may read it.", _LOG_OF_SSHD),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^.*: Permission denied \((?P<said>[^)]*)\)",
        what="ssh is not let in: permission denied ({said})",
        owner="job",
        fix=(
            you("Put your public key there; ncclcheck never types a password.", "ssh-copy-id {node}", TRY),
            admin("If the key is there, see why sshd refuses it.", _LOG_OF_SSHD),
        ),
    ),
    LaunchCause(
        pattern=(
            r"^@ +WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED|^Host key for .* has changed"
            r"|^.*WARNING: REVOKED HOST KEY"
        ),
        what="its host key is not the one that is known here",
        owner="job",
        fix=(
            admin(
                "Say whether the host was installed anew, and what its key is.",
                "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            ),
            you(
                "If so, forget the old key and accept the new one; if not, another machine answers there.",
                "ssh-keygen -R {node}",
                "ssh {node} true",
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^Host key verification failed|^No .* host key is known for",
        what="ssh does not know this host's key",
        owner="job",
        fix=(
            you("Connect once by hand, compare the key and accept it.", "ssh {node} true"),
            admin("Or give all nodes the keys of all: /etc/ssh/ssh_known_hosts.", "ssh-keyscan {node}"),
        ),
    ),
    LaunchCause(
        pattern=r"^.*Unable to negotiate with \S+ port \d+: (?P<said>no matching .*)",
        what="ssh and its sshd have no algorithm in common: {said}",
        owner="site",
        fix=(
            admin(
                "Bring the older side up to date, or allow an algorithm that both have.",
                "sshd -T | grep -i algorithms",
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^ssh: Could not resolve hostname (?P<name>\S+):",
        what="its name does not resolve here: {name}",
        owner="job",
        fix=(
            you("Correct the name, or name its address in ~/.ssh/config (HostName).", "getent hosts {name}"),
            admin("Enter the node in DNS or in /etc/hosts.", "grep -w {name} /etc/hosts"),
        ),
    ),
    LaunchCause(
        pattern=r"^channel \d+: open failed: (?P<said>.*)|^stdio forwarding failed",
        what="its jump host (ProxyJump) does not come through to it: {said}",
        owner="site",
        fix=(you("Trace the path hop by hop.", "ssh -v -o BatchMode=yes {node} true"),),
    ),
    LaunchCause(
        pattern=(
            r"^ncclcheck: .*: nobody listens on port (?P<port>\d+) of (?P<address>\S+), "
            r"and an sshd answers on port (?P<other>\d+): (?P<said>.*)"
        ),
        what="no sshd listens on port {port} there; one does on port {other} ({said})",
        owner="job",
        fix=(
            you(
                "If that is its sshd, name the port in ~/.ssh/config, and under what name its key is known.",
                "printf 'Host %s\\n    Port %s\\n    HostKeyAlias %s\\n' {node} {other} {address} >>~/.ssh/config",
                TRY,
            ),
            admin("Or let sshd listen on the usual port, too (Port in sshd_config).", "sshd -T | grep -i '^port'"),
        ),
    ),
    LaunchCause(
        pattern=r"^ssh: connect to .*: Connection refused",
        what="its ssh port refuses connections: no sshd listens there",
        owner="node",
        fix=(
            admin("Start sshd on that node.", "systemctl enable --now ssh || systemctl enable --now sshd"),
            you("If it listens on another port, name it in ~/.ssh/config (Port).", TRY),
        ),
    ),
    LaunchCause(
        pattern=(
            r"^(?:ssh: )?[Cc]onnect.* timed out during banner exchange"
            r"|^banner exchange: Connection to .* timed out"
        ),
        what="sshd accepted the connection but sent no banner in 10 s: the port is open, sshd or the host hangs",
        owner="node",
        fix=(
            you("Exclude the node until it is repaired.", "#SBATCH --exclude={node}"),
            admin(
                "Look at the machine's console (BMC): out of memory, a hung disk or file system, a kernel that "
                "died; sshd answers only once it can start a process.",
                "ipmitool -H BMC sol activate",
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^ssh: connect to .* timed out|^Connection to .* timed out",
        what="no answer from its ssh port in 10 s: it is down, or a firewall drops the packets",
        owner="node",
        fix=(
            you("See whether it answers at all.", "ping -c 3 {node}", TRY),
            you("If it was given back or is to stay off, exclude it.", "#SBATCH --exclude={node}"),
            admin(
                "Start the node by its BMC, or open its ssh port to this host.",
                "nft list ruleset; iptables-save   # on its console",
            ),
        ),
    ),
    LaunchCause(
        pattern=r"^ssh: connect to .*: (?P<said>No route to host|Network is unreachable)",
        what="there is no route to it from here ({said}): it is down, or the route or a firewall is wrong",
        owner="site",
        fix=(
            you("See whether other hosts of its network answer.", "getent hosts {node}", "ip route"),
            you("If it was given back or is to stay off, exclude it.", "#SBATCH --exclude={node}"),
            admin("Start the node, or correct the route and the firewall (REJECT) between the two."),
        ),
    ),
    LaunchCause(
        pattern=r"^(?:kex|ssh)_exchange_identification: |^banner exchange: .*invalid format",
        what="sshd closed the connection before any login: it takes no more at once, or none from here",
        owner="node",
        fix=(
            you("Try again with nothing else that logs in there.", TRY),
            admin(
                "See why: MaxStartups or PerSourcePenalties (sshd_config), fail2ban, hosts.deny.",
                _LOG_OF_SSHD,
                "sshd -T | grep -iE 'maxstartups|persource'",
            ),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^(?:Connection (?:closed|reset) by |Received disconnect from )",
        what="sshd closed the connection during the login",
        owner="node",
        fix=(
            you("See what it says by hand; here its banner is not shown.", TRY),
            admin(
                "See why: no job of this user on the node (pam_slurm_adopt), /etc/nologin, an account that is "
                "closed, MaxStartups.",
                _LOG_OF_SSHD,
            ),
        ),
        begun=False,
    ),
    LaunchCause(
        pattern=r"^Connection to \S+ closed by remote host",
        what="sshd there ended its session in mid-run: sshd or the session was stopped or restarted with all it "
        "had started, or the node was shut down",
        owner="node",
        fix=(
            you("See whether it still answers.", TRY),
            admin(
                "See what ended it: a restart of sshd (an upgrade; with KillMode=control-group it takes along all "
                "that it started), logind, a shutdown.",
                _LOG_OF_SSHD,
                "last -x reboot shutdown | head -3",
            ),
        ),
        why="What ran there ended with the connection: what its peers print of connections that were closed or "
        "reset is a consequence.",
        begun=True,
    ),
    LaunchCause(
        pattern=(
            r"^Timeout, server \S+ not responding|^Connection (?:to \S+ )?(?:closed|reset) by "
            r"|^(?:kex_|client_loop)|^Received disconnect from "
        ),
        what="its ssh connection broke",
        owner="node",
        fix=(
            you("See whether it still answers.", TRY),
            admin(
                "See whether it restarted, and whether the network between was cut.", "last -x reboot | head -3"
            ),
        ),
        why="What ran there was ended with the connection, and nothing more was heard.",
    ),
    LaunchCause(
        pattern=r"^Error.*: (?:No such container|[Cc]ontainer \S+ is not running|no container with name)",
        what="the container of --via is not there or does not run",
        owner="job",
        fix=(you("Start the same container on every host.", "ssh {node} docker ps"),),
    ),
    LaunchCause(
        pattern=r"^\S*: (?:line \d+: )?(?:exec|\S+): restricted\b",
        what="its login shell is a restricted one, which starts no program by its path",
        owner="job",
        fix=(admin("Give this account a plain shell on that node.", "getent passwd {node}"),),
    ),
)
