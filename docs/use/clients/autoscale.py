"""Keeps as many workers as a queue needs, as replicas of a Kubernetes deployment: python autoscale.py"""

import collections
import math
import os
import subprocess
import time

import redis

URL = os.environ.get("SUREQ_URL", "redis://127.0.0.1:7379")
QUEUE = os.environ.get("QUEUE", "emails")
DEPLOYMENT = os.environ.get("DEPLOYMENT", "deployment/worker")
LEAST, MOST = int(os.environ.get("LEAST", 1)), int(os.environ.get("MOST", 50))
WAIT_S = float(os.environ.get("WAIT_S", 30))  # how long a task may wait
TASK_S = float(os.environ.get("TASK_S", 1))  # how long a task takes, until it is measured
BY_AGE = os.environ.get("BY_AGE", "1") == "1"  # off where tasks are delayed: their age counts from the push
CALM_S = float(os.environ.get("CALM_S", 300))  # how long fewer workers must suffice before it scales down
EVERY_S = float(os.environ.get("EVERY_S", 10))
BUSY = 0.8  # a fifth of the time is left for bursts

client = redis.Redis.from_url(URL, protocol=3)


def look():
    info = client.execute_command("RQ.INFO", QUEUE)
    return {name.decode(): float(value) if name.endswith(b"_per_second") else value for name, value in info.items()}


def seconds_per_task(info, before):
    """Leased tasks divided by tasks finished per second (Little's law)."""
    finished = info["finished_per_second"]
    return info["leased"] / finished if finished and info["leased"] else before


def needed(info, seconds, now):
    """Workers that keep up with new tasks and finish the waiting ones in time."""
    if info["paused"]:
        return 0
    workers = math.ceil((info["pushed_per_second"] + info["ready"] / WAIT_S) * seconds / BUSY)
    if BY_AGE and info["oldest_ms"] > WAIT_S * 1000:
        workers = max(workers, now + max(1, now // 4))  # tasks wait too long, so there are too few workers
    return min(workers, info["max-leased"] or workers)


def kubectl(*words):
    return subprocess.run(["kubectl", *words], check=True, capture_output=True, text=True).stdout


def main():
    seconds, lately = TASK_S, collections.deque()
    while True:
        try:
            info = look()
            now = int(kubectl("get", DEPLOYMENT, "--output=jsonpath={.spec.replicas}"))
            seconds = seconds_per_task(info, seconds)
            if not lately:
                lately.append((time.monotonic(), now))  # at first, keep as many as there are
            lately.append((time.monotonic(), needed(info, seconds, now)))
            while len(lately) > 1 and time.monotonic() - lately[0][0] > CALM_S:
                lately.popleft()
            # Up at once, at most to twice as many; down to the largest recent need.
            goal = min(max(workers for _, workers in lately), max(1, now) * 2)
            goal = max(LEAST, min(MOST, goal))
            if goal != now:
                kubectl("scale", DEPLOYMENT, f"--replicas={goal}")
            state = f"ready {info['ready']}, oldest {info['oldest_ms']} ms, {seconds:.2f} s each"
            print(f"{state}: {now} -> {goal}", flush=True)
        except (redis.RedisError, subprocess.CalledProcessError) as error:
            # Without figures nothing is changed.
            print(error, flush=True)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
