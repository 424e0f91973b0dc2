"""Logs of jobs -> facts, in one pass and bounded memory, hostile until parsed.

lines: bytes -> records of NCCL and other lines. nccl: records -> what each process and communicator said.
transports: that -> `Transport`, one a rank. place: where the log of our own job stands.
"""
