use super::*;
use crate::fuzz::{TwoTargets, fixed_entropy};

const TRANSIT: u8 = FLAG_FINAL;

/// A login request from stage `csg`, with these other flags and keys.
fn request(flags: u8, csg: u8, keys: &[(&str, &str)]) -> (Bhs, Vec<u8>) {
    let mut text = Keys::default();
    keys.iter().for_each(|(key, value)| text.push(key, *value));
    let text = text.encode();
    let mut bhs = Bhs::new(opcode::LOGIN | 0x40).with_flags(flags | csg << 2).with_itt(5).with_word(24, 77);
    bhs.0[8] = 0x80;
    bhs.set_data_bytes(text.len());
    (bhs, text)
}

fn login() -> Login {
    Login::new(fixed_entropy(), 9)
}

fn receive(login: &mut Login, (bhs, text): (Bhs, Vec<u8>)) -> (Step, Keys) {
    let step = login.receive(&TwoTargets, &bhs, &text);
    let keys = Keys::decode(&step.text).unwrap();
    (step, keys)
}

fn status(step: &Step) -> Status {
    (step.bhs.word(36) >> 16) as u16
}

const NORMAL: [(&str, &str); 2] = [("InitiatorName", "iqn.a"), ("TargetName", "iqn.open")];

#[test]
fn one_request_may_lead_to_a_session() {
    let keys = [&NORMAL[..], &[("HeaderDigest", "CRC32C,None"), ("MaxBurstLength", "65536"), ("X-a", "1")]].concat();
    let (step, reply) = receive(&mut login(), request(TRANSIT | FULL_FEATURE, OPERATIONAL, &keys));
    assert_eq!((status(&step), step.bhs.flags()), (status::SUCCESS, TRANSIT | OPERATIONAL << 2 | FULL_FEATURE));
    assert_eq!((step.bhs.0[14], step.bhs.0[15]), (0, 9), "the TSIH");
    assert_eq!(reply.get("TargetPortalGroupTag"), Some("1"));
    assert_eq!((reply.get("HeaderDigest"), reply.get("X-a")), (Some("CRC32C"), Some("NotUnderstood")));
    let Next::Session(established) = step.next else { panic!("{step:?}") };
    assert_eq!((established.exp_cmd_sn, established.stat_sn), (77, 1));
    assert_eq!(established.target.as_deref(), Some("iqn.open"));
    assert!(established.parameters.digests.header && established.parameters.first_burst_bytes == 65536);
}

#[test]
fn stages_follow_each_other() {
    let mut login = login();
    let (step, reply) = receive(
        &mut login,
        request(TRANSIT | OPERATIONAL, SECURITY, &[&NORMAL[..], &[("AuthMethod", "CHAP,None")]].concat()),
    );
    assert_eq!((step.next, reply.get("AuthMethod")), (Next::Request, Some("None")));
    let (step, _) = receive(&mut login, request(0, OPERATIONAL, &[("InitialR2T", "No")]));
    assert_eq!(step.bhs.flags(), OPERATIONAL << 2);
    let (step, _) = receive(&mut login, request(TRANSIT | FULL_FEATURE, OPERATIONAL, &[]));
    assert!(matches!(step.next, Next::Session(_)));
    assert_eq!(step.bhs.word(24), 2, "each response has its StatSN");
}

/// libiscsi repeats its name and the kind of session in the operational stage if it has credentials and needs none.
#[test]
fn a_name_may_be_repeated_but_not_changed() {
    let discovery = [("InitiatorName", "iqn.a"), ("SessionType", "Discovery")];
    let second = |again: &[(&str, &str)]| {
        let mut login = login();
        let keys = [&discovery[..], &[("AuthMethod", "CHAP,None")]].concat();
        assert_eq!(receive(&mut login, request(TRANSIT | OPERATIONAL, SECURITY, &keys)).0.next, Next::Request);
        let keys = [again, &[("HeaderDigest", "None")]].concat();
        receive(&mut login, request(TRANSIT | FULL_FEATURE, OPERATIONAL, &keys)).0
    };
    assert!(matches!(second(&discovery).next, Next::Session(established) if established.target.is_none()));
    for other in [("InitiatorName", "iqn.b"), ("TargetName", "iqn.open"), ("SessionType", "Normal")] {
        assert_eq!(status(&second(&[other])), status::INITIATOR_ERROR, "{other:?}");
    }
}

#[test]
fn split_texts_are_joined() {
    let mut login = login();
    let (bhs, text) = request(TRANSIT | FULL_FEATURE, OPERATIONAL, &NORMAL);
    let (head, tail) = text.split_at(20);
    let mut first = bhs.with_flags(FLAG_CONTINUE | OPERATIONAL << 2);
    first.set_data_bytes(head.len());
    let step = login.receive(&TwoTargets, &first, head);
    assert_eq!((step.next, step.text.len()), (Next::Request, 0));
    assert!(matches!(login.receive(&TwoTargets, &bhs, tail).next, Next::Session(_)));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let full = TRANSIT | FULL_FEATURE;
    let refused = |flags, csg, keys: &[(&str, &str)]| status(&receive(&mut login(), request(flags, csg, keys)).0);
    assert_eq!(refused(full, OPERATIONAL, &[("TargetName", "iqn.open")]), status::MISSING_PARAMETER);
    assert_eq!(refused(full, OPERATIONAL, &NORMAL[..1]), status::MISSING_PARAMETER);
    let to = |target| [("InitiatorName", "iqn.a"), ("TargetName", target)];
    assert_eq!(refused(full, OPERATIONAL, &to("iqn.none")), status::NOT_FOUND);
    assert_eq!(refused(full, OPERATIONAL, &to("iqn.closed")), status::FORBIDDEN);
    assert_eq!(refused(full, OPERATIONAL, &to("iqn.chap")), status::AUTHENTICATION_FAILURE);
    assert_eq!(refused(full, OPERATIONAL, &[NORMAL[0], ("SessionType", "Other")]), status::UNSUPPORTED_SESSION_TYPE);
    assert_eq!(refused(TRANSIT | OPERATIONAL, OPERATIONAL, &NORMAL), status::INITIATOR_ERROR);
    assert_eq!(refused(full, 2, &NORMAL), status::INITIATOR_ERROR);
    assert_eq!(refused(full | FLAG_CONTINUE, OPERATIONAL, &NORMAL), status::INITIATOR_ERROR);
    let with = |change: fn(Bhs) -> Bhs| {
        let (bhs, text) = request(full, OPERATIONAL, &NORMAL);
        status(&login().receive(&TwoTargets, &change(bhs), &text))
    };
    assert_eq!(with(|bhs| bhs.with_byte(3, 1)), status::UNSUPPORTED_VERSION);
    assert_eq!(with(|bhs| bhs.with_byte(15, 1)), status::TOO_MANY_CONNECTIONS);
    assert_eq!(with(|bhs| bhs.with_byte(15, 2)), status::NO_SESSION);
    assert_eq!(with(|bhs| bhs.with_byte(0, 4)), status::INVALID_DURING_LOGIN);
}

#[test]
fn a_discovery_session_has_no_target() {
    let keys = [("InitiatorName", "iqn.a"), ("SessionType", "Discovery"), ("MaxBurstLength", "65536")];
    let (step, reply) = receive(&mut login(), request(TRANSIT | FULL_FEATURE, OPERATIONAL, &keys));
    assert!(matches!(step.next, Next::Session(established) if established.target.is_none()));
    assert_eq!((reply.get("MaxBurstLength"), reply.get("TargetPortalGroupTag")), (Some("Irrelevant"), None));
}

#[test]
fn a_client_without_its_proof_stays_in_the_security_stage() {
    let mut login = login();
    let keys = [("InitiatorName", "iqn.a"), ("TargetName", "iqn.chap"), ("AuthMethod", "CHAP")];
    let (step, _) = receive(&mut login, request(TRANSIT | OPERATIONAL, SECURITY, &keys));
    assert_eq!((step.next, step.bhs.flags()), (Next::Request, 0), "not granted");
    let (_, reply) = receive(&mut login, request(0, SECURITY, &[("CHAP_A", "5")]));
    assert!(reply.get("CHAP_C").is_some());
    let wrong = [("CHAP_N", "user"), ("CHAP_R", "0x0102")];
    let (step, _) = receive(&mut login, request(TRANSIT | FULL_FEATURE, SECURITY, &wrong));
    assert_eq!((status(&step), step.next), (status::AUTHENTICATION_FAILURE, Next::Close));
    let none = [("InitiatorName", "iqn.a"), ("TargetName", "iqn.chap"), ("AuthMethod", "None")];
    let (step, _) = receive(&mut super::tests::login(), request(TRANSIT | FULL_FEATURE, SECURITY, &none));
    assert_eq!(status(&step), status::AUTHENTICATION_FAILURE);
}

#[test]
fn a_refusal_names_initiator_target_and_reason() {
    let of = |keys: &[(&str, &str)]| {
        let mut login = login();
        receive(&mut login, request(TRANSIT | OPERATIONAL, SECURITY, keys));
        login.refusal()
    };
    let discovery = ("SessionType", "Discovery");
    let name = ("InitiatorName", "iqn.a");
    assert_eq!(of(&[name, discovery, ("AuthMethod", "CHAP,None")]), None);
    let refusal = of(&[name, discovery, ("AuthMethod", "CHAP")]).unwrap();
    assert_eq!(
        refusal,
        "'iqn.a', for discovery: it requires authentication, and discovery has none: let it offer AuthMethod=None as well (status 0201)"
    );
    let refusal = of(&[name, ("TargetName", "iqn.chap"), ("AuthMethod", "None")]).unwrap();
    assert!(refusal.starts_with("'iqn.a', to target 'iqn.chap': it does not offer CHAP"), "{refusal}");
    let refusal = of(&[name, ("TargetName", "iqn.closed")]).unwrap();
    assert!(refusal.contains("initiators= or hosts="), "{refusal}");
    let long = "x\n".repeat(4000);
    let refusal = of(&[name, ("TargetName", &long)]).unwrap();
    assert!(refusal.len() < 1000 && !refusal.contains('\n') && refusal.contains("no such target"), "{refusal}");
    assert!(of(&[discovery]).unwrap().starts_with("an initiator without a name"));
}

#[test]
fn a_wrong_secret_and_a_wrong_user_differ_in_the_log() {
    for (user, why) in [("user", "its CHAP secret is wrong"), ("other", "its CHAP user is not that of chap=")] {
        let mut login = login();
        let first = [("InitiatorName", "iqn.a"), ("TargetName", "iqn.chap"), ("AuthMethod", "CHAP")];
        receive(&mut login, request(0, SECURITY, &first));
        receive(&mut login, request(0, SECURITY, &[("CHAP_A", "5")]));
        let proof = [("CHAP_N", user), ("CHAP_R", "0x00112233445566778899aabbccddeeff")];
        receive(&mut login, request(TRANSIT | OPERATIONAL, SECURITY, &proof));
        let refusal = login.refusal().unwrap();
        assert!(refusal.contains(why) && !refusal.contains("0011"), "{refusal}");
    }
}
