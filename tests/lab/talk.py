"""Small programs that hosts of the lab talk with: who answers, how many datagrams arrive, how fast a link is."""

from __future__ import annotations

from tests.lab.hosts import PYTHON, Host, Lab
from tests.lab.tools import until

PORT = 5000
# Says its name to whoever connects, then reads to the end and says how much came; answers UDP with its size.
_SERVER = f"""
import socket, threading
tcp = socket.create_server(("", {PORT}))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("", {PORT}))
def echo():
    while True:
        data, sender = udp.recvfrom(65536)
        udp.sendto(str(len(data)).encode(), sender)
threading.Thread(target=echo, daemon=True).start()
def serve(one):
    one.sendall(socket.gethostname().encode().ljust(16))
    read = 0
    while part := one.recv(65536):
        read += len(part)
    one.sendall(str(read).encode())
while True:
    threading.Thread(target=serve, args=(tcp.accept()[0],), daemon=True).start()
"""
_CONNECT = f"""
import socket, sys
for address in sys.argv[1:]:
    try:
        print(socket.create_connection((address, {PORT}), timeout=0.7).recv(16).decode().strip())
    except OSError as error:
        print(type(error).__name__)
"""
# argv: address, payload, how many; prints how many answers came.
_DATAGRAMS = f"""
import socket, sys
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER: DF, whatever the path
udp.settimeout(0.3)
address, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for _ in range(count):
    udp.sendto(bytes(size), (address, {PORT}))
answers = 0
try:
    while answers < count:
        udp.recv(100)
        answers += 1
except TimeoutError:
    pass
print(answers)
"""
_SEND = f"""
import socket, sys, time
one = socket.create_connection((sys.argv[1], {PORT}), timeout=10)
one.recv(16)
start = time.monotonic()
one.sendall(bytes(2_000_000))
one.shutdown(socket.SHUT_WR)
one.recv(100)
print(2_000_000 * 8 / (time.monotonic() - start) / 1e6)
"""


def python(host: Host, program: str, *arguments: str, seconds: float = 10) -> str:
    """What a small program printed on a host."""
    return host.check([*PYTHON, "-c", program, *arguments], seconds).strip()


def reached(host: Host, *addresses: str) -> str:
    """The name of who answers at each address, or the name of the error."""
    return " ".join(python(host, _CONNECT, *addresses).split())


def serve(lab: Lab) -> None:
    """Start the server on every host."""
    for host in lab.hosts:
        host.start([*PYTHON, "-c", _SERVER])
    for host in lab.hosts:
        until(f"{host.name} serves", lambda host=host: bool(host.check(["ss", "-Hltn", f"sport = {PORT}"])))  # type: ignore[misc]


def answered(host: Host, address: str, size: int, count: int = 3) -> int:
    """How many of so many datagrams of this size, with DF, came to an address and were answered."""
    return int(python(host, _DATAGRAMS, address, str(size), str(count)))


def mbit_per_second(host: Host, address: str) -> float:
    """How fast a host sends to an address."""
    return float(python(host, _SEND, address))
