"""Adds a task for each argument: python producer.py hello world"""

import os
import sys
import uuid

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

URL = os.environ.get("SUREQ_URL", "redis://127.0.0.1:7379")
QUEUE = os.environ.get("QUEUE", "emails")

# A command whose reply is lost is repeated, for about half a minute.
client = redis.Redis.from_url(URL, retry=Retry(ExponentialWithJitterBackoff(base=0.1, cap=5), retries=12))


def add(payload, name):
    """Returns once the task is on disk. While a task of that name exists, no second one is added."""
    id, added, state = client.execute_command("RQ.ADD", QUEUE, payload, "NAME", name)
    return id.decode(), bool(added)


if __name__ == "__main__":
    for payload in sys.argv[1:]:
        # A name that follows from the event, such as "invoice-42", is better: the task cannot be added twice.
        id, added = add(payload, name=str(uuid.uuid4()))
        print(id, "added" if added else "exists already", flush=True)
