use super::*;

#[tokio::test]
async fn a_service_that_never_answers_is_given_up_at_the_deadline() {
    let cell = TestCell::new();
    let service = Arc::new(TestService::default());
    let server = cell.serve(MRC, service.clone());
    let client = cell.connect(&server);
    let error = ask_within(&client, MetaOp::Sync, 300)
        .await
        .reply
        .unwrap_err();
    assert_eq!(error.code, Code::TimedOut);
    assert!(matches!(error.retry, crate::Retry::After(_)));
    // The server has let go of the call as well: nothing is left to wait for.
    assert!(server.shutdown(SOON).await);
}

#[tokio::test]
async fn nobody_at_the_address_is_told_in_time() {
    let cell = TestCell::new();
    let nobody = std::net::UdpSocket::bind(any_port()).unwrap();
    let client = cell.connect_to(nobody.local_addr().unwrap());
    let answer = ask_within(&client, MetaOp::Statfs, 200).await;
    assert_eq!(code(&answer), Some(Code::TimedOut));
}

#[tokio::test]
async fn a_service_that_was_restarted_is_found_again() {
    let cell = TestCell::new();
    let identity = cell.service(MRC);
    let server = cell.serve_as(&identity, any_port(), Arc::default());
    let address = server.local_addr();
    let client = cell.connect(&server);
    assert!(
        ask(&client, MetaOp::Statfs, Bytes::new())
            .await
            .reply
            .is_ok()
    );

    assert!(server.shutdown(SOON).await);
    let answer = ask_within(&client, MetaOp::Statfs, 500).await;
    assert!(answer.reply.is_err(), "nobody is there");
    let _server = cell.serve_as(&identity, address, Arc::default());
    until_ok(&*client.mrc(), || call(MetaOp::Statfs, Bytes::new())).await;
}

#[tokio::test]
async fn a_service_that_was_killed_and_restarted_is_found_again() {
    let cell = TestCell::new();
    let identity = cell.service(MRC);
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let server = {
        let _inside = doomed.enter();
        cell.serve_as(&identity, any_port(), Arc::default())
    };
    let address = server.local_addr();
    let client = cell.connect(&server);
    assert!(
        ask(&client, MetaOp::Statfs, Bytes::new())
            .await
            .reply
            .is_ok()
    );

    // Its tasks end without a word to the client, as if the process had been killed.
    tokio::task::spawn_blocking(move || drop(doomed))
        .await
        .unwrap();
    drop(server);
    let _server = cell.serve_as(&identity, address, Arc::default());
    // The new process does not know the connection and says so at once.
    let answer = ask_within(&client, MetaOp::Statfs, 5000).await;
    assert_eq!(code(&answer), Some(Code::Unreachable), "{:?}", answer.reply);
    until_ok(&*client.mrc(), || call(MetaOp::Statfs, Bytes::new())).await;
}

#[tokio::test]
async fn shutdown_answers_what_is_running_and_ends_every_task() {
    let cell = TestCell::new();
    let service = Arc::new(TestService::default());
    let server = cell.serve(MRC, service.clone());
    let client = cell.connect(&server);
    let running = async {
        service.begun.notified().await;
        let (in_order, ()) = tokio::join!(server.shutdown(SOON), async {
            service.let_go.notify_one();
        });
        assert!(in_order);
    };
    let (answer, ()) = tokio::join!(ask(&client, MetaOp::Sync, Bytes::new()), running);
    assert!(answer.reply.is_ok(), "{:?}", answer.reply);
    assert_eq!(Arc::strong_count(&service), 1, "a task still holds it");
    client.shutdown(SOON).await;
    let answer = ask(&client, MetaOp::Statfs, Bytes::new()).await;
    assert_eq!(code(&answer), Some(Code::Unreachable));
}

#[tokio::test]
async fn shutdown_cuts_off_what_does_not_end() {
    let cell = TestCell::new();
    let service = Arc::new(TestService::default());
    let server = cell.serve(MRC, service.clone());
    let client = cell.connect(&server);
    let stopping = async {
        service.begun.notified().await;
        assert!(!server.shutdown(Duration::from_millis(50)).await);
    };
    let (answer, ()) = tokio::join!(ask(&client, MetaOp::Sync, Bytes::new()), stopping);
    assert!(answer.reply.is_err());
    assert_eq!(Arc::strong_count(&service), 1, "a task still holds it");
}
