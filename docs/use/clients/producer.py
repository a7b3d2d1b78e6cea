"""Adds a task for each argument: python producer.py hello world"""

import os
import sys
import uuid

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

URL = os.environ.get("SUREQ_URL", "redis://127.0.0.1:7379")
QUEUE = os.environ.get("QUEUE", "emails")

# Every command is sent again when its answer is lost, for half a minute or so.
client = redis.Redis.from_url(URL, retry=Retry(ExponentialWithJitterBackoff(base=0.1, cap=5), retries=12))


def add(payload, name):
    """Returns once the task is on disk. While a task of that name is there, no second one is added."""
    id, added, state = client.execute_command("RQ.ADD", QUEUE, payload, "NAME", name)
    return id.decode(), bool(added)


if __name__ == "__main__":
    for payload in sys.argv[1:]:
        # Better than a random name: what the task is about, such as "invoice-42". Then nobody can add it twice.
        id, added = add(payload, name=str(uuid.uuid4()))
        print(id, "added" if added else "was there already", flush=True)
