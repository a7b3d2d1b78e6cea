"""redis-py as it comes: redis_py.py HOST PORT PROTOCOL, where the server is empty and of its own."""

import sys
import threading

import redis

host, port, protocol = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def connect(**options):
    return redis.Redis(host=host, port=port, protocol=protocol, **options)


client = connect()
rq = lambda verb, *words: client.execute_command(f"RQ.{verb}", *words)


def says_hello():
    assert client.ping()
    assert client.echo("hi") == b"hi"
    assert client.info()["redis_version"] and client.info()["loading"] == 0
    assert client.client_id() > 0
    assert client.client_setname("worker-7") and client.client_getname() in ("worker-7", b"worker-7")
    libraries = [c["lib-name"] for c in client.client_list() if c["id"] == str(client.client_id())]
    assert len(libraries) == 1 and libraries[0].startswith("redis-py"), libraries
    assert len(client.time()) == 2
    assert client.command_count() > 20
    assert client.config_get("save") == {}


def pushes_pops_and_acks():
    ids = rq("PUSH", "emails", "one", "two", "three")
    assert len(ids) == 3 and ids == sorted(ids)
    assert rq("INSPECT", "emails", 0, 10) == [[ids[0], b"one"], [ids[1], b"two"], [ids[2], b"three"]]
    assert rq("INSPECT", "emails", -1, 10) == [[ids[2], b"three"]]
    assert rq("POP", "emails") == [[b"emails", ids[0], b"one"]]
    assert rq("POP", "COUNT", 5, "emails") == [[b"emails", ids[1], b"two"], [b"emails", ids[2], b"three"]]
    assert rq("POP", "emails") == []
    assert rq("ACK", "emails", *ids) == ids
    assert rq("ACK", "emails", *ids) == []


def pops_from_several_queues_in_order():
    low, high = rq("PUSH", "low", "l1", "l2"), rq("PUSH", "high", "h1")
    popped = rq("POP", "COUNT", 2, "high", "low")
    assert popped == [[b"high", high[0], b"h1"], [b"low", low[0], b"l1"]]
    # RedisRQ's own example has a bare count.
    assert rq("POP", 10, "high", "low") == [[b"low", low[1], b"l2"]]
    assert rq("ACK", "low", *low) == low and rq("ACK", "high", *high) == high


def waits_for_another_client():
    assert rq("POP", "BLOCK", 20, "slow") is None
    pushed = []

    def push_once_someone_waits():
        other = connect()
        while other.info("clients")["blocked_clients"] == 0:
            pass
        pushed.extend(other.execute_command("RQ.PUSH", "slow", "late"))

    pusher = threading.Thread(target=push_once_someone_waits)
    pusher.start()
    popped = rq("POP", "BLOCK", 4000, "never", "slow")
    pusher.join()
    assert popped == [[b"slow", pushed[0], b"late"]]
    assert rq("ACK", "slow", pushed[0]) == pushed


def recovers_what_was_forgotten():
    (task,) = rq("PUSH", "forgotten", "x")
    rq("POP", "forgotten")
    assert rq("RECOVER", "forgotten", 10, 60_000) == []
    assert rq("RECOVER", "forgotten", 10, 0) == [[task, b"x"]]
    ((id, payload, delivered_at, elapsed, deliveries),) = rq("INSPECT", "forgotten", "PENDING", 0, 10)
    assert (id, payload, deliveries) == (task, b"x", 2) and delivered_at > 0 and elapsed >= 0
    assert rq("ACK", "forgotten", task) == [task]


def fences_with_receipts():
    rq("PUSH", "fenced", "x")
    ((_, task, _, receipt, deliveries),) = rq("POP", "LEASE", 60_000, "fenced")
    assert deliveries == 1 and receipt.startswith(task + b"@1.")
    assert rq("ACK", "fenced", receipt) == [receipt]


def shows_counts():
    (task,) = rq("PUSH", "counted", "x")
    info = rq("INFO", "counted")
    if protocol == 3:
        assert list(info.items())[:2] == [(b"undelivered", 1), (b"delivered", 0)]
    else:
        assert info[:4] == [b"undelivered", 1, b"delivered", 0]
    rq("POP", "counted")
    rq("ACK", "counted", task)


def pipelines():
    pipeline = client.pipeline(transaction=False)
    for n in range(500):
        pipeline.execute_command("RQ.PUSH", "piped", n)
    pipeline.execute_command("RQ.POP", "COUNT", 1000, "piped")
    *pushed, popped = pipeline.execute()
    assert popped == [[b"piped", ids[0], b"%d" % n] for n, ids in enumerate(pushed)]
    assert len(rq("ACK", "piped", *(ids[0] for ids in pushed))) == 500


def keeps_every_byte():
    payloads = [bytes(range(256)) * 1000, b"", b"\r\n", b"$5\r\nhello\r\n"]
    ids = rq("PUSH", b"queue \xff\r\n", *payloads)
    popped = rq("POP", "COUNT", 10, b"queue \xff\r\n")
    assert popped == [[b"queue \xff\r\n", id, payload] for id, payload in zip(ids, payloads)]
    assert rq("ACK", b"queue \xff\r\n", *ids) == ids


def sees_queues_as_keys():
    assert client.keys() == [] and client.dbsize() == 0
    for n in range(25):
        rq("PUSH", f"key:{n}", "x")
    names = {f"key:{n}".encode() for n in range(25)}
    assert set(client.keys("key:*")) == names and client.keys("other:*") == []
    assert set(client.scan_iter(match="key:*", count=4)) == names
    assert set(client.scan_iter(_type="RELIABLEQ")) == names and list(client.scan_iter(_type="list")) == []
    assert client.exists("key:0", "key:0", "nothing") == 2
    assert client.type("key:0") == b"RELIABLEQ" and client.type("nothing") == b"none"
    assert client.delete(*names, "nothing") == 25
    assert client.dbsize() == 0


def listens():
    def heard(pubsub):
        while True:
            message = pubsub.get_message(timeout=20)
            assert message is not None, "no message has arrived"
            if message["type"] in ("message", "pmessage"):
                return message["type"], message["pattern"], message["channel"], message["data"]

    with client.pubsub() as pubsub:
        pubsub.subscribe("sureq:work:news", "sureq:delete:news")
        pubsub.psubscribe("sureq:done:*")
        while not all(pubsub.get_message(timeout=20)["type"].endswith("subscribe") for _ in range(3)):
            pass
        one, two, three = rq("PUSH", "news", "one", "two", "three")
        assert heard(pubsub) == ("message", None, b"sureq:work:news", b"3")
        rq("POP", "COUNT", 2, "news")
        rq("ACK", "news", one, two)
        for task in (one, two):
            assert heard(pubsub) == ("pmessage", b"sureq:done:*", b"sureq:done:news", task)
        assert client.pubsub_numsub("sureq:work:news") == [(b"sureq:work:news", 1)]
        assert client.pubsub_numpat() == 1 and len(client.pubsub_channels("sureq:*:news")) == 2
        pubsub.ping("there?")
        pubsub.unsubscribe("sureq:work:news")
        rq("PUSH", "news", "four")
        client.delete("news")
        assert heard(pubsub) == ("message", None, b"sureq:delete:news", b"2")
        pubsub.reset()
    assert client.dbsize() == 0


def hears_errors():
    for words, text in [
        (["SET", "a", "b"], "unknown command 'SET', with args beginning with: 'a' 'b' "),
        (["RQ.PUSH", "q"], "wrong number of arguments for 'rq.push' command"),
        (["RQ.POP", "BLOCK", "-1", "q"], "BLOCK must be an integer from 0 to 3162240000000"),
    ]:
        try:
            client.execute_command(*words)
        except redis.ResponseError as error:
            assert str(error) == text, error
        else:
            raise AssertionError(f"{words} should be an error")
    assert client.ping()


for story in [
    says_hello,
    pushes_pops_and_acks,
    pops_from_several_queues_in_order,
    waits_for_another_client,
    recovers_what_was_forgotten,
    fences_with_receipts,
    shows_counts,
    pipelines,
    keeps_every_byte,
    sees_queues_as_keys,
    listens,
    hears_errors,
]:
    story()
    print(story.__name__)
