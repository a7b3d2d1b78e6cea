//! redis-rs: blocking and multiplexed, RESP2 and RESP3.

use std::collections::{BTreeSet, HashMap};

use redis::{AsyncConnectionConfig, Client, Commands as _, RedisResult, Value, cmd, pipe};

use crate::Fixture;

/// The reply to RQ.POP.
type Popped = Vec<(String, String, Vec<u8>)>;

fn client(it: &Fixture, protocol: &str) -> Client {
    let url = format!("redis://{}/?protocol={protocol}", it.server.resp);
    Client::open(url).expect("the URL is sound")
}

#[test]
fn redis_rs_speaks_resp2() -> RedisResult<()> {
    let it = Fixture::start();
    blocking_story(&client(&it, "resp2"))
}

#[test]
fn redis_rs_speaks_resp3() -> RedisResult<()> {
    let it = Fixture::start();
    let client = client(&it, "resp3");
    let mut connection = client.get_connection()?;
    let info: Value = cmd("RQ.INFO").arg("emails").query(&mut connection)?;
    assert!(matches!(info, Value::Map(_)), "{info:?}");
    blocking_story(&client)
}

fn blocking_story(client: &Client) -> RedisResult<()> {
    let mut connection = client.get_connection()?;
    let ids: Vec<String> =
        cmd("RQ.PUSH").arg("emails").arg(&["one", "two", "three"]).query(&mut connection)?;
    let popped: Popped =
        cmd("RQ.POP").arg("COUNT").arg(2).arg("urgent").arg("emails").query(&mut connection)?;
    let expected = [("emails", &ids[0], "one"), ("emails", &ids[1], "two")];
    assert_eq!(popped, expected.map(|(queue, id, body)| (queue.to_owned(), id.clone(), body.into())));
    let again: Vec<(String, String)> =
        cmd("RQ.RECOVER").arg("emails").arg(1).arg(0).query(&mut connection)?;
    assert_eq!(again, [(ids[0].clone(), "one".to_owned())]);
    let shown: Vec<(String, String)> =
        cmd("RQ.INSPECT").arg("emails").arg(-1).arg(1).query(&mut connection)?;
    assert_eq!(shown, [(ids[2].clone(), "three".to_owned())]);
    let acked: Vec<String> = cmd("RQ.ACK").arg("emails").arg(&ids).query(&mut connection)?;
    assert_eq!(acked, ids[..2]);
    let info: HashMap<String, String> = cmd("RQ.INFO").arg("emails").query(&mut connection)?;
    assert_eq!((&*info["undelivered"], &*info["delivered"]), ("1", "0"));

    assert_eq!(connection.scan::<String>()?.collect::<RedisResult<Vec<_>>>()?, ["emails"]);
    assert_eq!(connection.keys::<_, Vec<String>>("e*")?, ["emails"]);
    assert!(connection.exists::<_, bool>("emails")?);
    assert_eq!(cmd("TYPE").arg("emails").query::<String>(&mut connection)?, "RELIABLEQ");
    assert_eq!(connection.del::<_, i64>("emails")?, 1);

    let error = connection.set::<_, _, ()>("a", "b").expect_err("SET is not supported");
    assert!(error.to_string().contains("unknown command 'SET'"), "{error}");
    assert_eq!(
        cmd("RQ.POP").arg("BLOCK").arg(20).arg("emails").query::<Option<Popped>>(&mut connection)?,
        None
    );
    waiting_story(client)?;
    pipelined_story(client)
}

fn waiting_story(client: &Client) -> RedisResult<()> {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| -> RedisResult<Popped> {
            cmd("RQ.POP").arg("BLOCK").arg(0).arg("slow").query(&mut client.get_connection()?)
        });
        let mut connection = client.get_connection()?;
        while !cmd("INFO").arg("clients").query::<String>(&mut connection)?.contains("blocked_clients:1\r\n")
        {
            std::thread::yield_now();
        }
        let ids: Vec<String> = cmd("RQ.PUSH").arg("slow").arg("late").query(&mut connection)?;
        let popped = waiting.join().expect("it only waits")?;
        assert_eq!(popped, [("slow".to_owned(), ids[0].clone(), b"late".to_vec())]);
        Ok(())
    })
}

fn pipelined_story(client: &Client) -> RedisResult<()> {
    let mut connection = client.get_connection()?;
    let payload: Vec<u8> = (0..=255).collect();
    let mut pipeline = pipe();
    for _ in 0..500 {
        pipeline.cmd("RQ.PUSH").arg("piped").arg(&payload);
    }
    let ids: Vec<Vec<String>> = pipeline.query(&mut connection)?;
    let popped: Popped = cmd("RQ.POP").arg("COUNT").arg(1_000).arg("piped").query(&mut connection)?;
    let pushed = ids.into_iter().flatten().map(|id| ("piped".to_owned(), id, payload.clone()));
    assert_eq!(popped, pushed.collect::<Popped>());
    Ok(())
}

#[test]
fn redis_rs_multiplexed_speaks_resp2_and_resp3() -> RedisResult<()> {
    let it = Fixture::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for protocol in ["resp2", "resp3"] {
        runtime.block_on(multiplexed_story(&client(&it, protocol)))?;
    }
    Ok(())
}

async fn multiplexed_story(client: &Client) -> RedisResult<()> {
    let mut shared = client.get_multiplexed_async_connection().await?;
    // Its default timeout for a reply is half a second, which also ends a waiting pop.
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut waiter = client.get_multiplexed_async_connection_with_config(&patient).await?;
    let waiting = tokio::spawn(async move {
        cmd("RQ.POP").arg("BLOCK").arg(0).arg("slow").query_async::<Popped>(&mut waiter).await
    });
    while !cmd("INFO").query_async::<String>(&mut shared).await?.contains("blocked_clients:1\r\n") {
        tokio::task::yield_now().await;
    }
    let pushes: Vec<_> = (0..50)
        .map(|_| {
            let mut shared = shared.clone();
            tokio::spawn(async move {
                cmd("RQ.PUSH").arg("many").arg("x").query_async::<Vec<String>>(&mut shared).await
            })
        })
        .collect();
    let mut ids = Vec::new();
    for push in pushes {
        ids.extend(push.await.expect("it only pushes")?);
    }
    let popped: Popped = cmd("RQ.POP").arg("COUNT").arg(100).arg("many").query_async(&mut shared).await?;
    let popped: BTreeSet<&String> = popped.iter().map(|(_, id, _)| id).collect();
    assert_eq!(popped, ids.iter().collect());
    let acked: Vec<String> = cmd("RQ.ACK").arg("many").arg(&ids).query_async(&mut shared).await?;
    assert_eq!(acked, ids);

    let late: Vec<String> = cmd("RQ.PUSH").arg("slow").arg("late").query_async(&mut shared).await?;
    let popped = waiting.await.expect("it only waits")?;
    assert_eq!(popped, [("slow".to_owned(), late[0].clone(), b"late".to_vec())]);
    cmd("RQ.ACK").arg("slow").arg(&late).query_async::<Vec<String>>(&mut shared).await?;
    Ok(())
}
