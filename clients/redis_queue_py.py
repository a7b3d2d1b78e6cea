"""The published redis-queue for Python, one call at a time: redis_queue_py.py SOCKET QUEUE push BODY | pop | done ID.

It was written for Python 2 and an older redis-py. This file supplies the names that they removed; the package itself is
unchanged.
"""

import builtins
import sys
import uuid

import redis
import redis_queue

builtins.long = int
new_uuid = uuid.uuid4
uuid.uuid4 = lambda: str(new_uuid())

socket, queue, call = sys.argv[1:4]
client = redis.Redis(unix_socket_path=socket, decode_responses=True)
theirs = redis_queue.RedisQueue(client, poptimeout=1)

if call == "push":
    print(theirs.push_msg(queue, sys.argv[4]))
elif call == "pop":
    task, body = theirs.safe_pop_msg(queue)
    print(task, body)
else:
    theirs.mark_done(queue, sys.argv[4])
