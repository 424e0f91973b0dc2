"""What ssh says when it lets a launcher in nowhere."""

from __future__ import annotations

from ncclcheck.probes.logs.signs.sign import Sign

SIGNS = (
    Sign(
        "ssh-denied",
        r"(?:\S{1,64}@(?P<host>[\w.-]{1,253}): )?Permission denied \((?P<ways>(?:publickey|password|gssapi|keyboard|hostbased)"
        r"[a-z,-]{0,120})\)|(?P<key>Host key verification failed)",
        (
            "localhost: user@localhost: Permission denied (publickey,password).",
            "node2: Permission denied (publickey,gssapi-keyex,gssapi-with-mic).",
            "Host key verification failed.",
        ),
        words=("permission denied (", "host key verification"),
    ),
    Sign(
        "ssh-left",
        r"(?:(?P<host>[\w.-]{1,253}): )?ssh exited with exit code 255"
        r"|Command '\[?'?ssh(?: -[A-Za-z] \S{1,80}){0,6} (?P<to>\w[\w.-]{0,252})\b.{0,200} returned non-zero exit status 255",
        (
            "pdsh@head: node2: ssh exited with exit code 255",
            "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no 192.168.3.100 hostname' returned "
            "non-zero exit status 255.",
        ),
        words=("ssh exited with exit code", "exit status 255"),
    ),
)
