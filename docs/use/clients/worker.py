"""A worker on one queue: python worker.py"""

import logging
import os
import random
import signal
import socket
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

URL = os.environ.get("SUREQ_URL", "redis://127.0.0.1:7379")
QUEUE = os.environ.get("QUEUE", "emails")
NAME = os.environ.get("WORKER", f"{socket.gethostname()}-{os.getpid()}")  # two at once must not share it
BLOCK_MS = int(os.environ.get("BLOCK_MS", 2_000))  # how long a pop waits; an idle worker stops within this time
TTL_MS = int(os.environ.get("TTL_MS", 10_000))  # if the process dies, its task is free after this time
LEASE_MS = int(os.environ.get("LEASE_MS", 30_000))  # if the answer to a pop is lost, its task is free after this time
GRACE_MS = int(os.environ.get("GRACE_MS", 20_000))  # how long a task may go on after SIGTERM

log = logging.getLogger("worker")


def handle(task):
    """Your work. To return is to say that it is done; to raise, that it failed and is to be tried again."""
    print(task.id, task.payload.decode(), flush=True)


class Task:
    def __init__(self, queue, id, payload, receipt, deliveries):
        self.queue, self.id, self.payload = queue, id.decode(), payload
        self.receipt, self.deliveries = receipt, deliveries
        self.over = threading.Event()  # set when it was cancelled or taken away: nobody wants the result


class Worker:
    def __init__(self, handle):
        self.handle = handle
        self.client = connect(BLOCK_MS / 1000 + 5)
        self.heart = connect(TTL_MS / 1000 / 4)
        self.name = None  # who we are in this life, as RQ.WORKER START answered it
        self.task = None
        self.failures = 0
        self.stop_at = None
        self.ended = threading.Event()

    def run(self):
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        threading.Thread(target=self.beat, daemon=True).start()
        try:
            while not self.stop_at:
                task = self.pop()
                if task and not self.stop_at:
                    self.work(task)
        finally:
            self.leave()

    def stop(self, signum, frame):
        self.stop_at = self.stop_at or time.monotonic() + GRACE_MS / 1000

    def pop(self):
        try:
            if self.name is None:
                self.name = self.client.execute_command("RQ.WORKER", "START", NAME, "TTL", TTL_MS)
                log.info("started as %s", self.name.decode())
            words = ["BLOCK", BLOCK_MS, "LEASE", LEASE_MS, "WORKER", self.name, QUEUE]
            popped = self.client.execute_command("RQ.POP", *words)
        except redis.RedisError as error:
            if str(error).startswith("GONE replaced"):
                raise  # another worker has our name: to start anew would end it, and it would end us
            if is_gone(error):
                self.name = None  # we were taken for dead; what we had is with others
            else:
                self.pause("RQ.POP", error)
            return None
        self.failures = 0
        return Task(*popped[0]) if popped else None

    def work(self, task):
        self.task = task
        try:
            self.handle(task)
        except Exception as error:
            log.warning("task %s failed", task.id, exc_info=True)
            reason = f"{type(error).__name__}: {error}"
            ours = self.insist("RQ.RETURN", task.queue, task.receipt, "FAILED", reason)
        else:
            ours = self.insist("RQ.ACK", task.queue, task.receipt)
        if not ours:
            log.warning("task %s was no longer ours; it is done elsewhere, or again", task.id)
        self.task = None

    def insist(self, *words):
        """Sends what ends a task until it is answered. To say it twice does no harm: a receipt counts once."""
        while True:
            try:
                reply = self.client.execute_command(*words)
                self.failures = 0
                return reply
            except redis.RedisError as error:
                self.pause(words[0], error)

    def pause(self, what, error):
        """Waits longer each time, at random so that a thousand workers do not come back at once."""
        if not will_pass(error):
            raise error
        seconds = random.uniform(0.5, 1) * min(5, 0.1 * 2 ** min(self.failures, 10))
        self.failures += 1
        log.warning("%s: %s; once more in %.1f s", what, error, seconds)
        time.sleep(seconds)

    def beat(self):
        """The other thread: says that we live, keeps the lease, hears what is over, and ends a stop that takes too long."""
        while not self.ended.wait(TTL_MS / 1000 / 4):
            name, task, stop_at = self.name, self.task, self.stop_at
            if stop_at:
                log.info("stopping, in %.1f s at the latest", stop_at - time.monotonic())
                if time.monotonic() > stop_at:
                    self.leave()
                    os._exit(1)
            if name is None:
                continue
            try:
                over = self.heart.execute_command("RQ.WORKER", "BEAT", name)
                if task and task.receipt in over:
                    task.over.set()
                elif task and self.heart.execute_command("RQ.EXTEND", task.queue, task.receipt, LEASE_MS) != 1:
                    task.over.set()
            except redis.RedisError as error:
                log.warning("heartbeat: %s", error)
                if task and is_gone(error):
                    task.over.set()

    def leave(self):
        """Gives back, at no cost, whatever we still have. If that fails, the time to live does it."""
        self.ended.set()
        try:
            if self.name:
                self.heart.execute_command("RQ.WORKER", "STOP", self.name)
        except redis.RedisError as error:
            log.warning("RQ.WORKER STOP: %s", error)


def connect(timeout):
    # Without a retry of its own: who is to try again, and for how long, is said above.
    return redis.Redis.from_url(URL, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


def is_gone(error):
    return str(error).startswith("GONE ")


def will_pass(error):
    """A server that is away, stopping, or cut off from its Redis; not a wrong password or a missing right."""
    if isinstance(error, redis.ConnectionError):
        return not isinstance(error, redis.AuthenticationError)
    codes = ("CLOSED ", "POISONED ", "UNAVAILABLE ", "UNKNOWN ")
    return isinstance(error, redis.TimeoutError) or str(error).startswith(codes)


def main(handle):
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    Worker(handle).run()


if __name__ == "__main__":
    main(handle)
