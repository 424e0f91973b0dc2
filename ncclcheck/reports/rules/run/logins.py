"""RUN014: nodes whose sshd takes its time to look at a login, and then lets us in."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from ncclcheck.probes.facts import Cluster, replace
from ncclcheck.reports.judgement.findings import Finding, State, Where, seen, warn
from ncclcheck.reports.judgement.rule import NothingToJudge, rule
from ncclcheck.reports.subjects.failures.entering.launching import SLOW_LOGIN, SLOW_LOGIN_WHY


@rule("RUN014", "ssh logins succeed without delay", worst=State.WARN, over="")
def logins(cluster: Cluster) -> Iterator[Finding]:
    """
    ## What
    How long the sshd of a node takes to answer a login, where the run went by ssh.

    ## Why it matters
    With `UseDNS yes`, and with LDAP or PAM that ask a server, each login waits until a server that is gone is
    given up, 5 s or more a try. Every start of a job by ssh waits for it, and launchers that give a login 10 s
    fail on this node now and then, with no better word than status 255.

    ## How we know
    A node that has sent nothing for 4 s is entered once more with `ssh -v`; the time from the end of the key
    exchange to sshd's first answer counts, which is neither the network's nor the shell's. 3 s and more are
    reported.

    ## Fix
    - **admin** `UseDNS no` (sshd's default), or name servers and LDAP servers that answer.

    ## Source
    sshd_config(5), UseDNS; resolv.conf(5), timeout and attempts; ssh(1), -v.
    """
    if cluster.job.launcher != "ssh":
        raise NothingToJudge("the run did not go by ssh")
    answered = {node.name for node in cluster.nodes}
    for login in cluster.run.slow_logins:
        if login.node in answered:
            yield warn(
                Where(node=login.node),
                f"its sshd takes {login.seconds:.0f} s and more to look at a login: a slow name server, LDAP or "
                "PAM",
                why=SLOW_LOGIN_WHY,
                owner="node",
                evidence=[seen("ssh -v, from the key exchange to the first answer", f"{login.seconds:.1f} s")],
                fix=[
                    replace(fix, commands=[line.format(node=quote(login.node)) for line in fix.commands])
                    for fix in SLOW_LOGIN
                ],
            )
