use super::*;
use crate::message::PAYLOAD_BYTES_MAX;
use crate::transport::PushHandler;
use tokio::sync::mpsc;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_all_sizes_arrive_both_ways() {
    let cell = TestCell::new();
    let service = Arc::new(TestService::default());
    let server = cell.serve(MRC, service.clone());
    let client = cell.connect(&server);
    for length in [0, 64, 5000, 1 << 20, PAYLOAD_BYTES_MAX] {
        let sent = pattern(length);
        let answer = ask(&client, MetaOp::Statfs, sent.clone()).await;
        assert_eq!(answer.reply, Ok(Reply::Meta(MetaReply::Done)));
        assert!(answer.payload == sent, "{length} bytes there and back");
        let ino = u64::try_from(length).unwrap();
        let answer = ask(&client, MetaOp::Access { ino, mask: 0 }, Bytes::new()).await;
        assert!(answer.payload == sent, "{length} bytes back");
    }
    let callers = service.callers.lock();
    assert!(callers.iter().all(|peer| matches!(peer, Peer::Host(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_calls_at_once_get_their_own_answers() {
    let cell = TestCell::new();
    let server = cell.serve(MRC, Arc::default());
    let client = cell.connect(&server);
    let calls = (0..100).map(|number| {
        let client = &client;
        async move {
            let sent = pattern(number * 997);
            let answer = ask(client, MetaOp::Statfs, sent.clone()).await;
            assert!(answer.reply.is_ok(), "{:?}", answer.reply);
            assert!(answer.payload == sent, "answer {number}");
        }
    });
    futures_util::future::join_all(calls).await;
}

#[tokio::test]
async fn an_error_of_the_service_comes_back_as_it_is() {
    let cell = TestCell::new();
    let server = cell.serve(MRC, Arc::default());
    let client = cell.connect(&server);
    let answer = ask(&client, MetaOp::RenewSession, pattern(1 << 20)).await;
    assert_eq!(answer.reply, Err(Error::from(Code::NotFound)));
}

#[tokio::test]
async fn an_osd_is_found_through_the_directory() {
    let cell = TestCell::new();
    let mrc_service = Arc::new(TestService::default());
    let mrc = cell.serve(MRC, mrc_service.clone());
    let osd = cell.serve(OSD, Arc::default());
    let client = cell.connect(&mrc);
    let connection = client.osd(OSD).await.unwrap();
    let ask = || connection.call(call(MetaOp::Statfs, pattern(9)));

    assert_eq!(code(&ask().await), Some(Code::Unreachable), "no address");
    // The MRC is somebody else, whatever its address says.
    *mrc_service.addresses.lock() = vec![mrc.local_addr().to_string()];
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = ask().await.reply.unwrap_err();
    assert!(error.context.contains("another peer"), "{error}");

    *mrc_service.addresses.lock() =
        vec![mrc.local_addr().to_string(), osd.local_addr().to_string()];
    let answer = until_ok(&*connection, || call(MetaOp::Statfs, pattern(9))).await;
    assert_eq!(answer.payload, pattern(9));
}

#[tokio::test]
async fn a_push_reaches_the_handler() {
    struct Forward(mpsc::UnboundedSender<Push>);
    #[async_trait]
    impl PushHandler for Forward {
        async fn handle(&self, push: Push) {
            self.0.send(push).unwrap();
        }
    }
    let cell = TestCell::new();
    let server = cell.serve(MRC, Arc::default());
    let client = cell.connect(&server);
    let (sender, mut pushes) = mpsc::unbounded_channel();
    client.set_push_handler(Arc::new(Forward(sender)));
    for ino in 1..20 {
        let answer = ask(&client, MetaOp::ReturnLease { ino }, Bytes::new()).await;
        assert!(answer.reply.is_ok());
        let push = tokio::time::timeout(SOON, pushes.recv()).await.unwrap();
        assert_eq!(push, Some(recall(ino)));
    }
}

#[tokio::test]
async fn too_many_requests_are_answered_busy() {
    let cell = TestCell::new();
    let service = Arc::new(TestService::default());
    let server = QuicServer::with_socket(
        crate::transport::quic::DatagramSocket::bind(any_port()).unwrap(),
        &cell.service(MRC),
        service.clone(),
        &cell.env,
        Limits {
            requests: 1,
            ..Limits::default()
        },
    )
    .unwrap();
    let client = cell.connect(&server);
    let (first, ()) = tokio::join!(ask(&client, MetaOp::Sync, Bytes::new()), async {
        service.begun.notified().await;
        let refused = ask(&client, MetaOp::Statfs, pattern(1 << 20)).await;
        let error = refused.reply.unwrap_err();
        assert_eq!(error.code, Code::Busy);
        assert!(matches!(error.retry, crate::Retry::After(ms) if ms > 0));
        service.let_go.notify_one();
    });
    assert!(first.reply.is_ok());
    assert!(
        ask(&client, MetaOp::Statfs, Bytes::new())
            .await
            .reply
            .is_ok()
    );
}
