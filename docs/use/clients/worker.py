"""A worker on one queue: python worker.py"""

import concurrent.futures
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
NAME = os.environ.get("WORKER", f"{socket.gethostname()}-{os.getpid()}")  # must be unique among live workers
JOBS = int(os.environ.get("JOBS", 1))  # tasks at once, each in a thread of its own
BLOCK_MS = int(os.environ.get("BLOCK_MS", 2_000))  # how long a pop waits; an idle worker stops within this time
TTL_MS = int(os.environ.get("TTL_MS", 10_000))  # if the process dies, its tasks are requeued after this time
LEASE_MS = int(os.environ.get("LEASE_MS", 30_000))  # if the reply to a pop is lost, its task is requeued then
GRACE_MS = int(os.environ.get("GRACE_MS", 20_000))  # how long tasks may run after SIGTERM

log = logging.getLogger("worker")


def handle(task):
    """Your work. Return when it is done; raise to fail the try, and the task is retried after its backoff."""
    print(task.id, task.payload.decode(), flush=True)


class Task:
    def __init__(self, queue, id, payload, receipt, deliveries):
        self.queue, self.id, self.payload = queue, id.decode(), payload
        self.receipt, self.deliveries = receipt, deliveries
        self.over = threading.Event()  # set when the task was cancelled or requeued: stop working on it


class Worker:
    """One registered worker, which handles one task at a time."""

    def __init__(self, handle, name):
        self.handle = handle
        self.client = connect(BLOCK_MS / 1000 + 5)
        self.heart = connect(TTL_MS / 1000 / 4)
        self.base_name = name
        self.name = None  # the reply to RQ.WORKER START: the name with the number of this registration
        self.task = None
        self.failures = 0
        self.stopping = threading.Event()
        self.ended = threading.Event()

    def run(self):
        threading.Thread(target=self.beat, daemon=True).start()
        try:
            while not self.stopping.is_set():
                task = self.pop()
                if task and not self.stopping.is_set():
                    self.work(task)
        finally:
            self.leave()

    def pop(self):
        try:
            if self.name is None:
                self.register()
            words = ["BLOCK", BLOCK_MS, "LEASE", LEASE_MS, "WORKER", self.name, QUEUE]
            popped = self.client.execute_command("RQ.POP", *words)
        except redis.RedisError as error:
            if str(error).startswith("GONE replaced"):
                raise  # another worker has this name: registering again would end it, and it would end this one
            if is_gone(error):
                self.name = None  # the server missed the heartbeat and requeued the tasks: register again
            else:
                self.pause("RQ.POP", error)
            return None
        self.failures = 0
        return Task(*popped[0]) if popped else None

    def register(self):
        name = self.client.execute_command("RQ.WORKER", "START", self.base_name, "TTL", TTL_MS)
        self.client.execute_command("RQ.WORKER", "WORK", name, QUEUE)  # counts in `workers` of RQ.INFO
        self.name = name
        log.info("registered as %s", name.decode())

    def work(self, task):
        self.task = task
        try:
            self.handle(task)
        except Exception as error:
            log.warning("task %s failed", task.id, exc_info=True)
            reason = f"{type(error).__name__}: {error}"
            is_current = self.insist("RQ.RETURN", task.queue, task.receipt, "FAILED", reason)
        else:
            is_current = self.insist("RQ.ACK", task.queue, task.receipt)
        if not is_current:
            log.warning("task %s: this delivery is no longer the current one", task.id)
        self.task = None

    def insist(self, *words):
        """Repeats a command until it is answered. That is safe: a receipt counts only once."""
        while True:
            try:
                reply = self.client.execute_command(*words)
                self.failures = 0
                return reply
            except redis.RedisError as error:
                self.pause(words[0], error)

    def pause(self, what, error):
        """Waits with exponential backoff and jitter, or raises the error if a retry cannot help."""
        if not will_pass(error):
            raise error
        seconds = random.uniform(0.5, 1) * min(5, 0.1 * 2 ** min(self.failures, 10))
        self.failures += 1
        log.warning("%s: %s; retrying in %.1f s", what, error, seconds)
        time.sleep(seconds)

    def beat(self):
        """In a thread of its own: sends heartbeats, extends the lease, and notices cancelled and requeued tasks."""
        while not self.ended.wait(TTL_MS / 1000 / 4):
            name, task = self.name, self.task
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
        """Unregisters: a task that is not finished is requeued at no cost. If this fails, TTL_MS does it."""
        self.ended.set()
        try:
            if self.name:
                self.heart.execute_command("RQ.WORKER", "STOP", self.name)
        except redis.RedisError as error:
            log.warning("RQ.WORKER STOP: %s", error)


def connect(timeout):
    # The worker retries, not the client, so that it can log each failure and stop.
    return redis.Redis.from_url(URL, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


def is_gone(error):
    return str(error).startswith("GONE ")


def will_pass(error):
    """Whether a retry can help: the server is away, stopping, cut off from its Redis or out of memory, or a payload is
    damaged. It cannot help if the password is wrong or a role is missing."""
    if isinstance(error, redis.ConnectionError):
        return not isinstance(error, redis.AuthenticationError)
    # redis-py removes the code OOM from the message.
    if isinstance(error, (redis.TimeoutError, redis.exceptions.OutOfMemoryError)):
        return True
    return str(error).startswith(("CLOSED ", "DAMAGED ", "POISONED ", "UNAVAILABLE ", "UNKNOWN "))


def main(handle):
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    workers = [Worker(handle, NAME if JOBS == 1 else f"{NAME}-{n}") for n in range(JOBS)]

    def give_up():
        log.warning("tasks are still running after %d ms: requeueing them", GRACE_MS)
        for worker in workers:
            worker.leave()
        os._exit(1)

    def stop(signum=None, frame=None):
        if workers[0].stopping.is_set():
            return
        log.info("stopping, in %d ms at the latest", GRACE_MS)
        for worker in workers:
            worker.stopping.set()
        timer = threading.Timer(GRACE_MS / 1000, give_up)
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for ended in concurrent.futures.as_completed([pool.submit(worker.run) for worker in workers]):
            if ended.exception():
                stop()  # the others finish their tasks, then the error ends the process
            ended.result()


if __name__ == "__main__":
    main(handle)
