use super::*;
use crate::cell::server_name;
use crate::frame::{self, Kind};
use crate::transport::quic::stream::MessageReader;
use crate::transport::quic::{DatagramSocket, settings};

/// A member of the cell that does not keep to the protocol.
struct Hostile {
    _endpoint: quinn::Endpoint,
    connection: quinn::Connection,
}

impl Hostile {
    async fn connect(cell: &TestCell, server: &QuicServer) -> Self {
        let identity = cell.cell.host().unwrap();
        let socket = DatagramSocket::bind_any().unwrap();
        let (endpoint, config) = settings::client_endpoint(socket, &identity, &cell.env).unwrap();
        let name = server_name(cell.cell.id());
        let connection = endpoint
            .connect_with(config, server.local_addr(), &name)
            .unwrap()
            .await
            .unwrap();
        Self {
            _endpoint: endpoint,
            connection,
        }
    }

    /// What the server answers to these bytes on a stream of their own.
    async fn send(&self, bytes: &[u8]) -> Error {
        let (mut send, recv) = self.connection.open_bi().await.unwrap();
        let _ = send.write_all(bytes).await;
        let _ = send.finish();
        let mut reader = MessageReader::new(recv);
        let (header, bytes) = reader.header().await.unwrap();
        assert_eq!(header.kind, Kind::Reply);
        let body = reader.body(&header, &bytes).await.unwrap();
        frame::decode_reply(&body).unwrap_err()
    }
}

#[tokio::test]
async fn hostile_bytes_are_refused_and_disturb_nobody() {
    let cell = TestCell::new();
    let service = Arc::new(TestService::default());
    let server = cell.serve(MRC, service.clone());
    let client = cell.connect(&server);
    let hostile = Hostile::connect(&cell, &server).await;
    let good = frame::encode_request(&call(MetaOp::Statfs, Bytes::new()))
        .unwrap()
        .to_vec();
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let cases = [
        ("nothing", Vec::new(), Code::Protocol),
        ("half a header", good[..40].to_vec(), Code::Protocol),
        (
            "half a body",
            good[..good.len() - 4].to_vec(),
            Code::Protocol,
        ),
        (
            "another protocol",
            b"GET / HTTP/1.1\r\n".repeat(9),
            Code::Protocol,
        ),
        ("another version", changed(4, 9), Code::Version),
        (
            "a reply",
            frame::encode_reply(&Answer::new(Err(Code::Io.into())), 0)
                .unwrap()
                .to_vec(),
            Code::Protocol,
        ),
        ("a body of 4 GiB", changed(11, 0xff), Code::Protocol),
        ("a payload of 4 GiB", changed(15, 0xff), Code::Protocol),
        ("a damaged session", changed(20, 0xee), Code::Protocol),
        ("a damaged body", changed(70, 0xee), Code::Protocol),
    ];
    let (answer, ()) = tokio::join!(ask(&client, MetaOp::Sync, Bytes::new()), async {
        service.begun.notified().await;
        for (what, bytes, code) in cases {
            assert_eq!(hostile.send(&bytes).await.code, code, "{what}");
        }
        service.let_go.notify_one();
    });
    assert!(answer.reply.is_ok(), "a call that ran beside it");
    assert!(
        ask(&client, MetaOp::Statfs, Bytes::new())
            .await
            .reply
            .is_ok()
    );
}

#[tokio::test]
async fn a_service_that_breaks_down_takes_only_its_call_with_it() {
    let cell = TestCell::new();
    let server = cell.serve(MRC, Arc::default());
    let client = cell.connect(&server);
    let answer = ask(&client, MetaOp::ListVolumes, Bytes::new()).await;
    assert_eq!(code(&answer), Some(Code::Protocol));
    assert!(
        ask(&client, MetaOp::Statfs, Bytes::new())
            .await
            .reply
            .is_ok()
    );
}

#[tokio::test]
async fn a_foreign_cell_is_refused_by_both_sides() {
    let (ours, theirs) = (TestCell::new(), TestCell::new());
    let server = ours.serve(MRC, Arc::default());
    let stranger = theirs.connect(&server);
    let answer = ask(&stranger, MetaOp::Statfs, Bytes::new()).await;
    assert_eq!(
        code(&answer),
        Some(Code::AccessDenied),
        "{:?}",
        answer.reply
    );

    // One that would accept our server's certificate, with a certificate of its own authority.
    let forged = forged_member(&ours, &theirs);
    let client = QuicConnector::new(&forged, vec![server.local_addr().to_string()], &ours.env);
    let answer = ask(&client.unwrap(), MetaOp::Statfs, Bytes::new()).await;
    assert_eq!(
        code(&answer),
        Some(Code::AccessDenied),
        "{:?}",
        answer.reply
    );

    let member = ours.connect(&server);
    assert!(
        ask(&member, MetaOp::Statfs, Bytes::new())
            .await
            .reply
            .is_ok()
    );
}

/// Trusts our authority, but was made by theirs.
fn forged_member(ours: &TestCell, theirs: &TestCell) -> Identity {
    let pem = |cell: &TestCell, name: &str| {
        let path = cell._dir.path().join(name);
        cell.cell.host().unwrap().save(&path).unwrap();
        std::fs::read_to_string(path).unwrap()
    };
    let split = |text: String| -> Vec<String> {
        text.split_inclusive("-----END CERTIFICATE-----\n")
            .map(str::to_owned)
            .collect()
    };
    let (ours, theirs) = (split(pem(ours, "a.pem")), split(pem(theirs, "a.pem")));
    Identity::from_pem(format!("{}{}{}", theirs[0], ours[1], theirs[2])).unwrap()
}

#[tokio::test]
async fn a_peer_of_another_version_is_told_so() {
    let cell = TestCell::new();
    let server = cell.serve(MRC, Arc::default());
    let identity = cell.cell.host().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.authority()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![identity.certificate()], identity.key())
        .unwrap();
    tls.alpn_protocols = vec![b"xtfs/2".to_vec()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(tls));
    let endpoint = quinn::Endpoint::client(any_port()).unwrap();
    let error = endpoint
        .connect_with(config, server.local_addr(), &server_name(cell.cell.id()))
        .unwrap()
        .await
        .unwrap_err();
    assert_eq!(
        crate::transport::quic::stream::lost(&error).code,
        Code::Version
    );
}

#[tokio::test]
async fn a_user_cannot_pose_as_a_service() {
    let cell = TestCell::new();
    let user = cell.cell.issue_user(1000, &[]).unwrap();
    let refused = QuicServer::bind(any_port(), &user, Arc::<TestService>::default(), &cell.env);
    assert_eq!(refused.err().unwrap().code, Code::Invalid);
}
