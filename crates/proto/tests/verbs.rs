//! The meaning of the words of each RESP command, and the errors for invalid ones.

use sureq_core::WallTime;
use sureq_core::command::{
    AckScope, Add, Block, Cancel, Command, ConnId, IdForm, LeaseAsk, NameArg, Pop, Return, TaskRef, TaskRefs,
    View, When, Worker, WorkerRef,
};
use sureq_core::settings::{Change, Changes, Place, SettingWords};
use sureq_proto::ReplyStyle;
use sureq_proto::resp::Version;
use sureq_proto::verbs::{
    Caller, Client, Connections, Credentials, Describe, Hello, LibraryInfo, Request, SessionCommand, TABLE,
    find, parse,
};

const CALLER: Caller = Caller { conn: ConnId(7) };

fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ').map(str::as_bytes).collect()
}

fn check_home(line: &str, expect: Command<'_>) {
    assert_eq!(parse(&words(line), CALLER), Ok(Request::from(expect)), "{line:?}");
}

fn check_style(line: &str, command: Command<'_>, style: ReplyStyle) {
    assert_eq!(parse(&words(line), CALLER), Ok(Request::Home { command, style }), "{line:?}");
}

fn check_session(line: &str, expect: SessionCommand<'_>) {
    assert_eq!(parse(&words(line), CALLER), Ok(Request::Session(expect)), "{line:?}");
}

fn check_error(line: &str, expect: &str) {
    let words = words(line);
    let answer = parse(&words, CALLER).map_err(|no| no.to_string());
    assert_eq!(answer, Err(expect.to_owned()), "{line:?}");
}

#[test]
fn push_and_ack_take_all_further_words() {
    check_home("RQ.PUSH q a", Command::Push { queue: b"q", payloads: &[b"a"] });
    check_home("rq.push q  b", Command::Push { queue: b"q", payloads: &[b"", b"b"] });
    let tasks = TaskRefs { list: &[b"1-1", b"x"], form: IdForm::Long };
    check_home("Rq.Ack q 1-1 x", Command::Ack { queue: b"q", tasks, scope: AckScope::LeasedOrLapsed });
    check_home("RQ.INFO q", Command::Info { queue: b"q" });
}

fn check_pop(line: &str, queues: &[&[u8]], count: u32, block: Option<Block>) {
    check_home(line, Command::Pop(Pop { block, ..Pop::plain(queues, count) }));
}

#[test]
fn pop_takes_its_options_in_any_order_before_the_keys() {
    check_pop("RQ.POP q", &[b"q"], 1, None);
    check_pop("RQ.POP a b a", &[b"a", b"b", b"a"], 1, None);
    check_pop("RQ.POP COUNT 5 q", &[b"q"], 5, None);
    check_pop("RQ.POP block 100 count 5 q", &[b"q"], 5, Some(Block::Millis(100)));
    check_pop("RQ.POP COUNT 5 BLOCK 0 q r", &[b"q", b"r"], 5, Some(Block::Forever));
    check_pop("RQ.POP COUNT 9223372036854775807 q", &[b"q"], u32::MAX, None);
    check_pop("RQ.POP BLOCK 3162240000000 q", &[b"q"], 1, Some(Block::Millis(3_162_240_000_000)));
}

#[test]
fn pop_takes_a_bare_number_as_a_count_if_a_key_follows() {
    check_pop("RQ.POP 10 a b", &[b"a", b"b"], 10, None);
    check_pop("RQ.POP 5", &[b"5"], 1, None);
    check_pop("RQ.POP 5 5", &[b"5"], 5, None);
    check_pop("RQ.POP 5 6 q", &[b"6", b"q"], 5, None);
    check_pop("RQ.POP COUNT 2 5 q", &[b"5", b"q"], 2, None);
    check_pop("RQ.POP COUNT 2 5", &[b"5"], 2, None);
    check_pop("RQ.POP BLOCK 100 5 q", &[b"q"], 5, Some(Block::Millis(100)));
    check_pop("RQ.POP 5 BLOCK 100 q", &[b"q"], 5, Some(Block::Millis(100)));
    check_pop("RQ.POP BLOCK 100 5", &[b"5"], 1, Some(Block::Millis(100)));
    check_pop("RQ.POP q 5", &[b"q", b"5"], 1, None);
    check_pop("RQ.POP 007 q", &[b"007", b"q"], 1, None);
    check_error("RQ.POP -5 q", "ERR COUNT must be an integer from 0 to 9223372036854775807");
    check_error("RQ.POP 5 COUNT 2 q", "ERR COUNT is given twice");
}

#[test]
fn a_pop_of_nothing_does_not_wait() {
    check_pop("RQ.POP COUNT 0 q", &[b"q"], 0, None);
    check_pop("RQ.POP COUNT 0 BLOCK 0 q", &[b"q"], 0, None);
    check_pop("RQ.POP BLOCK 100 0 q", &[b"q"], 0, None);
}

#[test]
fn an_option_word_of_pop_is_never_a_key() {
    let arity = "ERR wrong number of arguments for 'rq.pop' command";
    for line in [
        "RQ.POP",
        "RQ.POP COUNT 2",
        "RQ.POP BLOCK 100",
        "RQ.POP COUNT 2 BLOCK 100",
        "RQ.POP 5 BLOCK 100",
        "RQ.POP CONN",
        "RQ.POP META",
        "RQ.POP LEASE 5",
        "RQ.POP WORKER w#1",
    ] {
        check_error(line, arity);
    }
    for option in ["COUNT", "BLOCK", "LEASE", "WORKER"] {
        check_error(&format!("RQ.POP {option}"), &format!("ERR {option} needs a value"));
        check_error(&format!("RQ.POP META {option}"), &format!("ERR {option} needs a value"));
    }
    for bad in ["x", "1.5", "-1", "+1", "9223372036854775808"] {
        let text = "ERR COUNT must be an integer from 0 to 9223372036854775807";
        check_error(&format!("RQ.POP COUNT {bad} q"), text);
    }
    check_error("RQ.POP COUNT 1 COUNT 1 q", "ERR COUNT is given twice");
    check_error("RQ.POP BLOCK 1 BLOCK 1 q", "ERR BLOCK is given twice");
    for bad in ["x", "0.5", "-1", "3162240000001", "99999999999999999999"] {
        let text = "ERR BLOCK must be an integer from 0 to 3162240000000";
        check_error(&format!("RQ.POP BLOCK {bad} q"), text);
    }
    check_error("RQ.POP q COUNT 5", "ERR COUNT must come before the keys");
    check_error("RQ.POP q block 5", "ERR BLOCK must come before the keys");
}

#[test]
fn pop_can_ask_for_a_lease() {
    let worker = WorkerRef { name: b"a#b", incarnation: 12 };
    let lease = LeaseAsk { ms: Some(5_000), worker: Some(worker), conn: None, lapse: None };
    let pop = Pop { lease, meta: true, ..Pop::plain(&[b"q"], 1) };
    check_home("RQ.POP META WORKER a#b#12 LEASE 5000 q", Command::Pop(pop));
    let conn = Pop { lease: LeaseAsk { conn: Some(ConnId(7)), ..LeaseAsk::NONE }, ..Pop::plain(&[b"q"], 1) };
    check_home("RQ.POP CONN q", Command::Pop(conn));
    check_error("RQ.POP CONN WORKER a#b#12 q", "ERR WORKER and CONN exclude each other");
    for bad in ["0", "-1", "x", "3162240000001"] {
        let text = "ERR LEASE must be an integer from 1 to 3162240000000";
        check_error(&format!("RQ.POP LEASE {bad} q"), text);
    }
    for bad in ["w", "w#", "w#x", "w#-1"] {
        let text = "ERR malformed worker: expected <name>#<n> as RQ.WORKER START returns it";
        check_error(&format!("RQ.POP WORKER {bad} q"), text);
    }
    check_error("RQ.POP CONN CONN q", "ERR CONN is given twice");
    check_error("RQ.POP META META q", "ERR META is given twice");
}

#[test]
fn recover_wants_two_numbers_and_no_more() {
    check_home("RQ.RECOVER q 10 0", Command::Recover { queue: b"q", count: 10, elapsed_ms: 0 });
    check_home("RQ.RECOVER q 0 5", Command::Recover { queue: b"q", count: 0, elapsed_ms: 5 });
    for bad in ["-1 0", "1 -1", "x 1", "1 x", "1.5 1", " 1"] {
        check_error(
            &format!("RQ.RECOVER q {bad}"),
            "ERR usage: RQ.RECOVER <key> <count:uint> <elapsed:uint>",
        );
    }
    for bad in ["RQ.RECOVER q 1", "RQ.RECOVER q PENDING 1 1", "RQ.RECOVER q 1 1 1"] {
        check_error(bad, "ERR wrong number of arguments for 'rq.recover' command");
    }
}

#[test]
fn inspect_wants_a_start_and_a_count_and_perhaps_a_state() {
    let inspect = |view, start, count| Command::Inspect { queue: b"q", view, start, count };
    check_home("RQ.INSPECT q 0 10", inspect(View::Ready, 0, 10));
    check_home("RQ.INSPECT q -3 1", inspect(View::Ready, -3, 1));
    check_home("RQ.INSPECT q pending 0 10", inspect(View::Leased, 0, 10));
    check_home("RQ.INSPECT q DELAYED 0 10", inspect(View::Delayed, 0, 10));
    check_home("RQ.INSPECT q dead 0 10", inspect(View::Dead, 0, 10));
    for bad in
        ["0 0", "0 -1", "0 x", "x 1", "PENDING 1", "READY 0 1", "PENDING 0 1 1", "PENDING 0 0", "0 1 1"]
    {
        let text = "ERR usage: RQ.INSPECT <key> [ PENDING | DELAYED | DEAD ] <start:int> <count:uint>";
        check_error(&format!("RQ.INSPECT q {bad}"), text);
    }
}

#[test]
fn keys_are_queues() {
    check_home("DEL a b", Command::Drop { queues: &[b"a", b"b"] });
    check_home("UNLINK a", Command::Drop { queues: &[b"a"] });
    check_home("EXISTS a a", Command::Exists { queues: &[b"a", b"a"] });
    check_style("TYPE a", Command::Exists { queues: &[b"a"] }, ReplyStyle::Type);
    let queues = |pattern, cursor, count| Command::Queues { pattern, cursor, count };
    check_style("KEYS *", queues(None, 0, u32::MAX), ReplyStyle::Keys);
    check_style("KEYS a*", queues(Some(b"a*"), 0, u32::MAX), ReplyStyle::Keys);
    check_home("DBSIZE", Command::Size);
    check_style("SCAN 0", queues(None, 0, 10), ReplyStyle::Scan);
    check_style("SCAN 7 COUNT 5 MATCH a* TYPE reliableq", queues(Some(b"a*"), 7, 5), ReplyStyle::Scan);
    check_style("SCAN 18446744073709551615 MATCH *", queues(None, u64::MAX, 10), ReplyStyle::Scan);
    check_session("SCAN 0 TYPE string", SessionCommand::ScanNothing);
    check_error("SCAN x", "ERR invalid cursor");
    check_error("SCAN -1", "ERR invalid cursor");
    for bad in ["SCAN 0 MATCH", "SCAN 0 COUNT 0", "SCAN 0 COUNT -1", "SCAN 0 FOO 1"] {
        check_error(bad, "ERR syntax error");
    }
    check_error("SCAN 0 COUNT x", "ERR value is not an integer or out of range");
}

#[test]
fn handshakes_of_real_clients_are_understood() {
    check_session("PING", SessionCommand::Ping(None));
    check_session("ping hi", SessionCommand::Ping(Some(b"hi")));
    check_error("PING a b", "ERR wrong number of arguments for 'ping' command");
    check_session("HELLO", SessionCommand::Hello(Hello::default()));
    let hello = Hello { version: Some(Version::Resp3), ..Hello::default() };
    check_session("HELLO 3", SessionCommand::Hello(hello));
    let credentials = Some(Credentials { user: Some(b"u"), password: b"p" });
    let full = Hello { version: Some(Version::Resp2), credentials, name: Some(b"n") };
    check_session("hello 2 setname n auth u p", SessionCommand::Hello(full));
    check_error("HELLO 4", "NOPROTO unsupported protocol version");
    check_error("HELLO 1", "NOPROTO unsupported protocol version");
    check_error("HELLO x", "ERR Protocol version is not an integer or out of range");
    check_error("HELLO 3 AUTH u", "ERR Syntax error in HELLO option 'AUTH'");
    check_error("HELLO 3 SETNAME", "ERR Syntax error in HELLO option 'SETNAME'");
    check_session("AUTH p", SessionCommand::Auth(Credentials { user: None, password: b"p" }));
    check_session("AUTH u p", SessionCommand::Auth(Credentials { user: Some(b"u"), password: b"p" }));
    check_error("AUTH a b c", "ERR syntax error");
    check_session("info", SessionCommand::Info(&[]));
    check_session("INFO server clients", SessionCommand::Info(&[b"server", b"clients"]));
    check_session("SELECT 0", SessionCommand::Select);
    check_error("SELECT 1", "ERR DB index is out of range");
    check_error("SELECT x", "ERR value is not an integer or out of range");
    check_session("CONFIG GET save", SessionCommand::ConfigGet(&[b"save"]));
    check_error("CONFIG SET save x", "ERR unknown subcommand 'SET'. Try CONFIG HELP.");
    check_session("QUIT", SessionCommand::Quit);
    check_session("RESET", SessionCommand::Reset);
    check_session("TIME", SessionCommand::Time);
}

#[test]
fn client_has_subcommands() {
    let client = |line: &str, expect| check_session(line, SessionCommand::Client(expect));
    client("CLIENT ID", Client::Id);
    client("client getname", Client::GetName);
    client("CLIENT SETNAME n", Client::SetName(b"n"));
    client("CLIENT SETNAME ", Client::SetName(b""));
    client("CLIENT SETINFO LIB-NAME redis-py", Client::SetInfo(LibraryInfo::Name(b"redis-py")));
    client("CLIENT SETINFO lib-ver 8.1", Client::SetInfo(LibraryInfo::Version(b"8.1")));
    client("CLIENT INFO", Client::Info);
    client("CLIENT LIST", Client::List(Connections::All));
    client("CLIENT LIST TYPE normal", Client::List(Connections::Normal));
    client("CLIENT LIST TYPE pubsub", Client::List(Connections::PubSub));
    client("CLIENT LIST TYPE replica", Client::List(Connections::None));
    client("CLIENT LIST ID 1 2", Client::List(Connections::Ids(&[b"1", b"2"])));
    client("CLIENT NO-EVICT on", Client::Nothing);
    client("CLIENT NO-TOUCH OFF", Client::Nothing);
    check_session("CLIENT HELP", SessionCommand::Help("CLIENT"));
    check_error("CLIENT", "ERR wrong number of arguments for 'client' command");
    check_error("CLIENT SETNAME", "ERR wrong number of arguments for 'client|setname' command");
    check_error(
        "CLIENT MAINT_NOTIFICATIONS ON",
        "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.",
    );
    check_error("CLIENT SETINFO FOO x", "ERR Unrecognized option 'FOO'");
    check_error("CLIENT LIST ID 0", "ERR Invalid client ID");
    check_error("CLIENT LIST TYPE foo", "ERR Unknown client type 'foo'");
    check_error("CLIENT LIST foo", "ERR syntax error");
    check_error("CLIENT NO-EVICT maybe", "ERR syntax error");
    let bad_name = "ERR Client names cannot contain spaces, newlines or special characters.";
    check_error("CLIENT SETNAME a\nb", bad_name);
    check_error(&format!("CLIENT SETNAME {}", "x".repeat(257)), bad_name);
    check_error(
        "CLIENT SETINFO LIB-NAME a\rb",
        "ERR lib-name cannot contain spaces, newlines or special characters.",
    );
}

#[test]
fn command_has_subcommands() {
    let command = |line: &str, expect| check_session(line, SessionCommand::Command(expect));
    command("COMMAND", Describe::Info(&[]));
    command("COMMAND COUNT", Describe::Count);
    command("COMMAND INFO ping", Describe::Info(&[b"ping"]));
    command("COMMAND DOCS", Describe::Docs(&[]));
    command("COMMAND LIST", Describe::List);
    command("COMMAND GETKEYS DEL a", Describe::Keys(&[b"DEL", b"a"]));
    check_error("COMMAND FOO", "ERR unknown subcommand 'FOO'. Try COMMAND HELP.");
    check_error("COMMAND GETKEYS", "ERR wrong number of arguments for 'command|getkeys' command");
}

/// A row of the table is some 200 times as long as a name that asks for it.
#[test]
fn no_more_commands_are_described_than_there_are() {
    let max: usize = TABLE.iter().map(|row| 1 + row.subs.len()).sum();
    for sub in ["INFO", "DOCS"] {
        let mut argv: Vec<&[u8]> = vec![b"COMMAND", sub.as_bytes()];
        argv.resize(2 + max, b"rq.worker");
        let Ok(Request::Session(SessionCommand::Command(Describe::Info(names) | Describe::Docs(names)))) =
            parse(&argv, CALLER)
        else {
            panic!("{sub} of {max} names")
        };
        assert_eq!(names.len(), max);
        argv.push(b"rq.worker");
        let error = parse(&argv, CALLER).expect_err("one name too many");
        assert_eq!(error.as_str(), format!("ERR COMMAND {sub} takes at most {max} names"));
    }
}

#[test]
fn add_takes_its_options_in_any_order() {
    let plain = Add::plain(b"q", b"p");
    check_home("RQ.ADD q p", Command::Add(plain));
    check_home("RQ.ADD q p DELAY 0", Command::Add(plain));
    let all = Add {
        name: Some(NameArg::Bytes(b"n")),
        when: When::After(5),
        priority: -128,
        tries: Some(u32::MAX),
        backoff_ms: Some(7),
        ttl_ms: Some(8),
        ..plain
    };
    check_home("RQ.ADD q p ttl 8 TRIES 4294967295 DELAY 5 PRIORITY -128 BACKOFF 7 NAME n", Command::Add(all));
    let unique = Add { name: Some(NameArg::Payload), when: When::At(WallTime(9)), ..plain };
    check_home("RQ.ADD q p UNIQUE AT 9", Command::Add(unique));
    // An option word is read as a value if a value is expected.
    check_home(
        "RQ.ADD q p NAME UNIQUE",
        Command::Add(Add { name: Some(NameArg::Bytes(b"UNIQUE")), ..plain }),
    );
}

/// Every option of every command, with a value that is missing, negative, too large, not a number, or given twice.
#[test]
fn errors_for_bad_values_name_their_option() {
    const LASTING: &str = "must be an integer from 1 to 3162240000000";
    const SPAN: &str = "must be an integer from 0 to 3162240000000";
    let numbers = [
        ("RQ.ADD q p", "DELAY", SPAN, "3162240000001"),
        ("RQ.ADD q p", "AT", "must be an integer from 0 to 9223372036854775807", "9223372036854775808"),
        ("RQ.ADD q p", "TRIES", "must be an integer from 1 to 4294967295", "4294967296"),
        ("RQ.ADD q p", "BACKOFF", LASTING, "3162240000001"),
        ("RQ.ADD q p", "TTL", LASTING, "0"),
        ("RQ.ADD q p", "PRIORITY", "must be an integer from -128 to 127", "128"),
        ("RQ.RETURN q 1-1", "DELAY", SPAN, "3162240000001"),
        ("RQ.WORKER START w", "TTL", LASTING, "0"),
        ("RQ.QUEUES", "COUNT", "must be an integer from 1 to 4294967295", "0"),
        ("RQ.QUEUES", "CURSOR", "must be an integer from 0 to 18446744073709551615", "18446744073709551616"),
    ];
    for (command, option, must, too_large) in numbers {
        check_error(&format!("{command} {option}"), &format!("ERR {option} needs a value"));
        for bad in ["x", "1.5", "", "-129", "99999999999999999999999", too_large] {
            check_error(&format!("{command} {option} {bad}"), &format!("ERR {option} {must}"));
        }
        check_error(&format!("{command} {option} 1 {option} 1"), &format!("ERR {option} is given twice"));
    }
    let words = [
        ("RQ.ADD q p NAME", "NAME needs a value"),
        ("RQ.ADD q p NAME a NAME b", "NAME is given twice"),
        ("RQ.ADD q p UNIQUE UNIQUE", "UNIQUE is given twice"),
        ("RQ.ADD q p UNIQUE NAME a", "NAME and UNIQUE exclude each other"),
        ("RQ.ADD q p DELAY 1 AT 1", "DELAY and AT exclude each other"),
        (
            "RQ.ADD q p x",
            "unknown option 'x': expected NAME, DELAY, AT, PRIORITY, TRIES, BACKOFF, TTL or UNIQUE",
        ),
        ("RQ.EXTEND q 1-1 0", "the new length of the lease must be an integer from 1 to 3162240000000"),
        ("RQ.RETURN q 1-1 FAILED", "FAILED needs a value"),
        ("RQ.RETURN q 1-1 FRONT FRONT", "FRONT is given twice"),
        ("RQ.RETURN q 1-1 FRONT BACK", "FRONT and BACK exclude each other"),
        ("RQ.RETURN q 1-1 BACK DELAY 1", "DELAY and BACK exclude each other"),
        ("RQ.RETURN q 1-1 DELAY 1 FRONT", "DELAY and FRONT exclude each other"),
        ("RQ.RETURN q 1-1 now", "unknown option 'now': expected DELAY, FRONT, BACK, FAILED or DEAD"),
        ("RQ.CANCEL q BY x", "unknown option 'BY': expected ID, NAME or PAYLOAD"),
        ("RQ.CANCEL q PAYLOAD x y", "PAYLOAD takes one payload"),
        (
            "RQ.PURGE q LEASED",
            "leased tasks are not purged: RQ.CANCEL asks their holders to stop, RQ.DELETE removes them",
        ),
        ("RQ.PURGE q all", "unknown option 'all': expected READY, DELAYED or DEAD"),
        ("RQ.PURGE q DEAD DEAD", "wrong number of arguments for 'rq.purge' command"),
        ("RQ.QUEUES MATCH", "MATCH needs a value"),
        ("RQ.QUEUES MATCH a MATCH b", "MATCH is given twice"),
        ("RQ.QUEUES x", "unknown option 'x': expected MATCH, COUNT or CURSOR"),
        ("RQ.CONFIG q TTL", "TTL needs a value"),
        ("RQ.CONFIG q ttl 1 TTL 2", "TTL is given twice"),
        ("RQ.CONFIG q TTL -1", "TTL must be milliseconds, from 1 to 3162240000000, or 0 for the default"),
        ("RQ.CONFIG q MAX-LEASED x", "MAX-LEASED must be a number, or 0 for no limit"),
        ("RQ.CONFIG q OVERFLOW drop", "OVERFLOW must be refuse or drop-oldest"),
        (
            "RQ.CONFIG q COLOUR red",
            "unknown setting 'COLOUR': expected one of LEASE, TRIES, BACKOFF, TTL, MAX-LENGTH, MAX-BYTES, MAX-LEASED, \
             EXPIRED, OVERFLOW, DEAD-LETTER",
        ),
        ("RQ.WORKER START ", "a worker needs a name"),
        ("RQ.WORKER START w now", "unknown option 'now': expected TTL"),
        ("RQ.WORKER BEAT w", "malformed worker: expected <name>#<n> as RQ.WORKER START returns it"),
        ("RQ.WORKER DANCE w", "unknown subcommand 'DANCE'. Try RQ.WORKER HELP."),
    ];
    for (line, text) in words {
        check_error(line, &format!("ERR {text}"));
    }
}

#[test]
fn parses_the_commands_on_tasks() {
    let task = |bytes| TaskRef { bytes, form: IdForm::Long };
    let tasks = |list| TaskRefs { list, form: IdForm::Long };
    let ids: &[&[u8]] = &[b"1-1", b"2-2"];
    check_home("RQ.EXTEND q 1-1 5", Command::Extend { queue: b"q", task: task(b"1-1"), ms: 5 });
    let back =
        |to, failed| Command::Return(Return { queue: b"q", task: task(b"1-1"), to, failed, is_last: false });
    check_home("RQ.RETURN q 1-1", back(None, None));
    check_home("RQ.RETURN q 1-1 front", back(Some(Place::Front), None));
    check_home("RQ.RETURN q 1-1 FAILED why BACK", back(Some(Place::Back), Some(b"why")));
    check_home("RQ.RETURN q 1-1 DELAY 0 FAILED ", back(Some(Place::After(0)), Some(b"")));
    let cancel = |which| Command::Cancel { queue: b"q", which };
    check_home("RQ.CANCEL q ID 1-1 2-2", cancel(Cancel::Ids(tasks(ids))));
    check_home("RQ.CANCEL q name 1-1 2-2", cancel(Cancel::Names(ids)));
    check_home("RQ.CANCEL q PAYLOAD p", cancel(Cancel::Payload(b"p")));
    check_home("RQ.BURY q 1-1 2-2", Command::Bury { queue: b"q", tasks: tasks(ids) });
    check_home("RQ.DELETE q 1-1 2-2", Command::Delete { queue: b"q", tasks: tasks(ids) });
    check_home("RQ.REVIVE q 1-1 2-2", Command::Revive { queue: b"q", tasks: Some(tasks(ids)) });
    check_home("RQ.REVIVE q all", Command::Revive { queue: b"q", tasks: None });
    check_home("RQ.EXPLAIN q 1-1", Command::Explain { queue: b"q", task: task(b"1-1") });
}

#[test]
fn parses_the_commands_on_queues_and_workers() {
    for (line, state) in [
        ("", None),
        (" ready", Some(View::Ready)),
        (" DELAYED", Some(View::Delayed)),
        (" DEAD", Some(View::Dead)),
    ] {
        check_home(&format!("RQ.PURGE q{line}"), Command::Purge { queue: b"q", state });
    }
    check_home("RQ.PAUSE q", Command::Pause { queue: b"q" });
    check_home("RQ.RESUME q", Command::Resume { queue: b"q" });
    let listed = |pattern, cursor, count| Command::Queues { pattern, cursor, count };
    check_home("RQ.QUEUES", listed(None, 0, 100));
    check_home("RQ.QUEUES COUNT 7 MATCH a* CURSOR 9", listed(Some(b"a*"), 9, 7));
    let words: [&[u8]; 4] = [b"tries", b"5", b"DEAD-LETTER", b"d"];
    let changes = Changes::Words(SettingWords::read(&words).unwrap());
    check_home("RQ.CONFIG q tries 5 DEAD-LETTER d", Command::Config { queue: b"q", changes });
    assert!(changes.iter().eq([Change::Tries(5), Change::DeadLetter(b"d")]));
    let worker = WorkerRef { name: b"w#1", incarnation: 2 };
    check_home("RQ.WORKER START w", Command::Worker(Worker::Start { name: b"w", ttl_ms: 3_000 }));
    check_home("rq.worker start w ttl 5", Command::Worker(Worker::Start { name: b"w", ttl_ms: 5 }));
    check_home("RQ.WORKER BEAT w#1#2", Command::Worker(Worker::Beat(worker)));
    check_home("RQ.WORKER WORK w#1#2 q", Command::Worker(Worker::Work(worker, b"q")));
    check_home("RQ.WORKER REST w#1#2 q", Command::Worker(Worker::Rest(worker, b"q")));
    check_home("RQ.WORKER STOP w#1#2", Command::Worker(Worker::Stop(worker)));
    check_home("RQ.WORKER FAIL w", Command::Worker(Worker::Fail { name: b"w" }));
    check_home("RQ.WORKER LIST", Command::Worker(Worker::List));
    check_session("RQ.WORKER HELP", SessionCommand::Help("RQ.WORKER"));
}

#[test]
fn commands_outside_the_table_are_unknown() {
    for name in
        ["MULTI", "EXEC", "PUBLISH", "GET", "RQ.ADDS", "RQ.", "", "PING\0", "PINGPINGPINGPINGPING", "PINGé"]
    {
        let answer = parse(&[name.as_bytes(), b"a"], CALLER).unwrap_err().to_string();
        let shown: String =
            name.bytes().map(|c| if c.is_ascii_graphic() { char::from(c) } else { '?' }).collect();
        assert_eq!(answer, format!("ERR unknown command '{shown}', with args beginning with: 'a' "));
    }
    assert!(parse(&[], CALLER).is_err());
}

#[test]
fn every_row_is_found_in_any_case_and_keeps_its_arity() {
    for row in TABLE {
        assert_eq!(find(row.name.to_ascii_lowercase().as_bytes()).map(|found| found.name), Some(row.name));
        let least = row.arity().unsigned_abs() as usize;
        let wrong = format!("ERR wrong number of arguments for '{}' command", row.name.to_ascii_lowercase());
        let argv = |words: usize| {
            let mut argv = vec![&b"1"[..]; words];
            argv[0] = row.name.as_bytes();
            argv
        };
        if least > 1 {
            let few = argv(least - 1);
            let answer = parse(&few, CALLER).map_err(|no| no.to_string());
            assert_eq!(answer, Err(wrong.clone()), "{} with too few", row.name);
        }
        if row.arity() > 0 {
            assert_eq!(
                parse(&argv(least + 1), CALLER).map_err(|no| no.to_string()),
                Err(wrong),
                "{}",
                row.name
            );
        }
    }
}

#[test]
fn every_row_is_documented() {
    for row in TABLE {
        assert!(row.name.bytes().all(|c| c.is_ascii_uppercase() || c == b'.'), "{}", row.name);
        assert!(row.syntax().starts_with(row.name) && row.example.contains(row.name), "{}", row.name);
        assert!(row.summary.ends_with('.') && row.reply.ends_with('.'), "{}", row.name);
        // A command that may consist of its name alone is parsed by its row even if it has subcommands.
        assert!(row.subs.is_empty() || row.arity() < 0, "{}", row.name);
    }
}

proptest::proptest! {
    #[test]
    fn any_words_get_an_answer_of_one_line(
        row in 0..TABLE.len(),
        argv in proptest::collection::vec("COUNT|BLOCK|LEASE|[0-9]{1,20}|-1|ID|SETNAME|MATCH|GETKEYS|[a-z\r\n\\x00é]{0,9}", 0..6),
    ) {
        let words: Vec<&[u8]> =
            std::iter::once(TABLE[row].name.as_bytes()).chain(argv.iter().map(String::as_bytes)).collect();
        match parse(&words, CALLER) {
            Ok(Request::Session(command)) => {
                let _ = sureq_proto::encode_answer(&mut Vec::new(), Version::Resp3, &command);
            }
            Ok(Request::Home { .. }) => {}
            Err(no) => proptest::prop_assert!(no.as_str().bytes().all(|c| matches!(c, b' '..=b'~')) && no.as_str().len() < 400),
        }
    }
}
