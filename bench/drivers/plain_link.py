# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Measures a link with plain sockets: plain_link.py serve | plain_link.py ask ADDRESS BYTES.

Prints, in seconds, the median round trip of 8 bytes and how long BYTES take both ways at once.
"""

import socket
import statistics
import sys
import threading
import time

PORT = 29555
ROUND_TRIPS = 200
MESSAGE = bytes(8)


def receive(link, count):
    while count:
        part = link.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError(f"the other side has closed, {count} bytes before the end")
        count -= len(part)


def exchange(link, count):
    sender = threading.Thread(target=link.sendall, args=(bytes(count),))
    sender.start()
    receive(link, count)
    sender.join()


def serve():
    with socket.create_server(("", PORT)) as server:
        print("up", flush=True)
        link, _ = server.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(ROUND_TRIPS):
        receive(link, len(MESSAGE))
        link.sendall(MESSAGE)
    count = int.from_bytes(link.recv(8), "little")
    link.sendall(MESSAGE)
    exchange(link, count)
    link.sendall(MESSAGE)


def ask(address, count):
    link = socket.create_connection((address, PORT))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    round_trips = []
    for _ in range(ROUND_TRIPS):
        begin = time.perf_counter()
        link.sendall(MESSAGE)
        receive(link, len(MESSAGE))
        round_trips.append(time.perf_counter() - begin)
    link.sendall(count.to_bytes(8, "little"))
    receive(link, len(MESSAGE))
    begin = time.perf_counter()
    exchange(link, count)
    receive(link, len(MESSAGE))
    print(statistics.median(round_trips), time.perf_counter() - begin)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        ask(sys.argv[2], int(sys.argv[3]))
