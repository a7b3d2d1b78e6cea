"""redis-py as a user: by password, by token, with URLs, and with too few rights."""

import sys

import redis

host, port, password, token = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


def connect(**who):
    return redis.Redis(host=host, port=port, decode_responses=True, **who)


for protocol in (2, 3):
    root = connect(username="root", password=password, protocol=protocol)
    assert root.ping()
    assert root.acl_whoami() == "root"
    root.execute_command("RQ.PUSH", "secrets", "x")
    print(f"by password, RESP{protocol}")

    mailer = connect(username="mailer", password=token, protocol=protocol)
    assert len(mailer.execute_command("RQ.PUSH", "emails", "x")) == 1
    print(f"by token, RESP{protocol}")

    anyone = connect(password=token, protocol=protocol)
    assert anyone.acl_whoami() == "mailer"
    print(f"by token alone, RESP{protocol}")

    try:
        mailer.execute_command("RQ.PUSH", "secrets", "x")
        sys.exit("a push that is not allowed was accepted")
    except redis.exceptions.NoPermissionError as error:
        assert "secrets" in str(error)
    assert mailer.ping()
    print(f"refused, and goes on, RESP{protocol}")

    for who in ({}, {"username": "root", "password": "wrong"}):
        try:
            connect(protocol=protocol, **who).ping()
            sys.exit(f"{who} was let in")
        except redis.exceptions.AuthenticationError:
            pass
    print(f"unauthenticated clients stay out, RESP{protocol}")

url = redis.Redis.from_url(f"redis://mailer:{token}@{host}:{port}")
assert url.ping()
print("by URL")
