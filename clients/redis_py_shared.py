"""Takes what netcat added, and adds what netcat will take: redis_py_shared.py HOST PORT BODY_IN BODY_OUT."""

import sys

import redis

host, port, body_in, body_out = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode(), sys.argv[4].encode()
client = redis.Redis(host=host, port=port)

((queue, task, payload),) = client.execute_command("RQ.POP", "default")
assert (queue, payload) == (b"default", body_in), (queue, payload)
assert client.execute_command("RQ.ACK", "default", task) == [task]
assert client.execute_command("RQ.ACK", "default", task) == []
assert len(client.execute_command("RQ.PUSH", "default", body_out)) == 1
