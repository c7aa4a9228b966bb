//! SMB users: Weir's own list, Samba's database of passwords, and the accounts that smbd acts as.
//!
//! ```text
//!   users          name:uid:gid, one line each                    Weir's list, mode 0600
//!                  -:uid:gid                                      the highest number that a removed user had
//!   passdb.tdb     name, password hash, flags                      Samba's, written by pdbedit, mode 0600
//!   passwd, group  accounts as smbd sees them (libnss_wrapper)     rendered from the list and /etc/passwd, /etc/group
//! ```
//!
//! *As root*, a user has the identity of the system's account of the same name. A user without one has a number from the list
//! (from 200,000 on, so that it is not that of an account made later; never that of a removed user, whose files may remain), and
//! smbd sees an account that exists for it alone.
//!
//! *As an ordinary user*, smbd cannot change its identity: all users act as the user that runs Weir, and their accounts
//! have its number. What each may do is then decided by the shares' lists of users, not by files' owners and ACLs.
//!
//! The wrapper hides accounts of other sources than files (LDAP, sssd). Where `/etc/nsswitch.conf` names such a source,
//! root's smbd runs without it, and users need an account of the system.

use crate::config::{self, Global};
use crate::directories::{Directories, write_private, write_readable};
use crate::error::SmbError;
use crate::programs::Programs;
use crate::run;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use tokio::process::Command;
use weir_machine::Clock;

/// Maximum length of a user's name in bytes.
const MAX_NAME_LEN: usize = 32;
/// Maximum length of a password in bytes (`pdbedit` reads 255).
const MAX_PASSWORD_LEN: usize = 127;
/// First number of users without an account of the system.
const FIRST_UID: u32 = 200_000;
/// Maximum number of users.
const MAX_USERS: usize = 10_000;
/// Maximum size of a list of accounts that is read, in bytes.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// Time for `pdbedit`.
const EDIT_TIME: Duration = Duration::from_secs(30);

/// An SMB user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// Number of the user: that of the system's account of this name, or one of its own.
    pub uid: u32,
    /// Number of the user's group.
    pub gid: u32,
}

/// Checks the name of a user.
pub fn check_name(name: &str) -> Result<(), SmbError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if !starts || name.len() > MAX_NAME_LEN || !name.chars().all(plain) {
        let why = "must have 1 to 32 letters of ASCII, digits, '_', '-' and '.', and begin with none of the last two";
        return Err(SmbError::Value { what: "user", value: name.to_owned(), why });
    }
    Ok(())
}

/// Checks a password. Messages do not show it.
fn check_password(password: &str) -> Result<(), SmbError> {
    let refuse = |why| Err(SmbError::Value { what: "password", value: "…".into(), why });
    match password {
        "" => refuse("must not be empty"),
        long if long.len() > MAX_PASSWORD_LEN => refuse("must not be longer than 127 bytes"),
        odd if odd.contains(char::is_control) => refuse("must contain no control characters"),
        _ => Ok(()),
    }
}

/// One line of `passwd` or of Weir's list: name and numbers. Other lines, and fields beyond, are ignored.
fn parse_line(line: &str, uid_at: usize) -> Option<User> {
    let fields: Vec<&str> = line.split(':').collect();
    let number = |at: usize| fields.get(at)?.parse().ok();
    Some(User { name: (*fields.first()?).to_owned(), uid: number(uid_at)?, gid: number(uid_at + 1)? })
}

/// Parses Weir's list. Lines that are no users are ignored.
pub fn parse_list(text: &str) -> Vec<User> {
    let users = text.lines().filter_map(|line| parse_line(line, 1));
    users.filter(|user| check_name(&user.name).is_ok()).take(MAX_USERS).collect()
}

/// Name in the list of the highest number that a removed user had; no user's.
const REMOVED: &str = "-";

/// The highest number from [`FIRST_UID`] on that a user of the list has or had.
fn highest_uid(text: &str) -> Option<u32> {
    text.lines().filter_map(|line| parse_line(line, 1)).map(|user| user.uid).filter(|uid| *uid >= FIRST_UID).max()
}

/// The list; `highest` is the highest number that a user has had.
fn render_list(users: &[User], highest: Option<u32>) -> String {
    let mut list: String = users.iter().map(|user| format!("{}:{}:{}\n", user.name, user.uid, user.gid)).collect();
    if let Some(uid) = highest.filter(|uid| Some(*uid) > highest_uid(&list)) {
        let _ = writeln!(list, "{REMOVED}:{uid}:{uid}");
    }
    debug_assert!(highest_uid(&list) >= highest, "a number would be given a second time");
    list
}

/// Reads a text file; a missing one is empty.
fn read(path: &std::path::Path) -> Result<String, SmbError> {
    use std::io::Read;
    let failed = |why| SmbError::file(path, why);
    match std::fs::File::open(path) {
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(MAX_LIST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(why) => Err(failed(why)),
    }
}

/// The accounts of the system, and the identity of this process.
#[derive(Clone, Debug)]
struct System {
    passwd: String,
    group: String,
    /// Whether accounts come from other sources than files.
    has_other_sources: bool,
    uid: u32,
    gid: u32,
}

/// Whether the line `passwd` of nsswitch.conf names other sources of accounts than files and systemd's dynamic users.
fn has_other_sources(nsswitch: &str) -> bool {
    let sources = nsswitch.lines().find_map(|line| line.trim_start().strip_prefix("passwd:")).unwrap_or_default();
    let words = sources.split('#').next().unwrap_or_default().split_whitespace();
    words.into_iter().any(|word| !["files", "compat", "systemd"].contains(&word) && !word.starts_with('['))
}

impl System {
    fn read() -> Result<Self, SmbError> {
        Ok(System {
            passwd: read(std::path::Path::new("/etc/passwd"))?,
            group: read(std::path::Path::new("/etc/group"))?,
            has_other_sources: has_other_sources(&read(std::path::Path::new("/etc/nsswitch.conf"))?),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        })
    }

    fn accounts(&self) -> impl Iterator<Item = User> + '_ {
        self.passwd.lines().filter_map(|line| parse_line(line, 2))
    }

    fn account(&self, name: &str) -> Option<User> {
        self.accounts().find(|account| account.name == name)
    }

    /// Whether smbd must see accounts that the system does not have.
    fn lacks(&self, users: &[User]) -> bool {
        let runner = self.accounts().any(|account| account.uid == self.uid);
        self.uid != 0 && (!users.is_empty() || !runner)
            || users.iter().any(|user| self.account(&user.name).as_ref() != Some(user))
    }

    /// Account of guests: the user that runs this program, which alone it can act as, or the system's unprivileged one.
    fn guest(&self) -> String {
        let own = self.accounts().find(|account| account.uid == self.uid).map(|account| account.name);
        match self.uid {
            0 => "nobody".into(),
            _ => own.unwrap_or_else(|| OWN_ACCOUNT.into()),
        }
    }

    /// The lists of accounts and of groups that smbd sees. An account of the system comes before those of SMB users with
    /// the same number, so that files belong to it by name.
    fn rendered(&self, users: &[User]) -> (String, String) {
        let kept =
            |line: &&str| parse_line(line, 2).is_none_or(|account| !users.iter().any(|u| u.name == account.name));
        let mut passwd: String = self.passwd.lines().filter(kept).map(|line| format!("{line}\n")).collect();
        let mut group = self.group.clone();
        let mut add = |name: &str, uid: u32, gid: u32| {
            // Writing to a string does not fail.
            let _ = writeln!(passwd, "{name}:x:{uid}:{gid}::/nonexistent:/usr/sbin/nologin");
        };
        if !self.accounts().any(|account| account.uid == self.uid) {
            add(OWN_ACCOUNT, self.uid, self.gid);
        }
        for user in users {
            let own = self.uid != 0;
            add(&user.name, if own { self.uid } else { user.uid }, if own { self.gid } else { user.gid });
        }
        let groups: Vec<u32> = group.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect();
        let missing: std::collections::BTreeSet<u32> = users.iter().map(|user| user.gid).chain([self.gid]).collect();
        for gid in missing.iter().filter(|gid| !groups.contains(gid)) {
            let _ = writeln!(group, "weir-{gid}:x:{gid}:");
        }
        (passwd, group)
    }
}

/// Name of the account of a user that the system's list lacks, as in a container with an arbitrary user.
const OWN_ACCOUNT: &str = "weir";

/// The users of a state directory, and the accounts that the programs of Samba see.
pub(crate) struct Users<'a> {
    pub(crate) directories: &'a Directories,
    pub(crate) programs: &'a Programs,
}

impl Users<'_> {
    /// Weir's list.
    pub(crate) fn list(&self) -> Result<Vec<User>, SmbError> {
        Ok(parse_list(&read(&self.directories.users())?))
    }

    /// Account of guests.
    pub(crate) fn guest_account(&self) -> Result<String, SmbError> {
        Ok(System::read()?.guest())
    }

    /// Renders the accounts and makes `command` see them.
    ///
    /// # Errors
    /// If they differ from the system's and the wrapper is not installed or cannot be used.
    pub(crate) fn show_accounts(&self, command: &mut Command) -> Result<(), SmbError> {
        let users = self.list()?;
        let system = System::read()?;
        let (passwd, group) = system.rendered(&users);
        let [passwd_file, group_file] = self.directories.accounts();
        write_readable(&passwd_file, passwd.as_bytes())?;
        write_readable(&group_file, group.as_bytes())?;
        match &self.programs.nss_wrapper {
            // Even if they do not differ now, so that a server need not be restarted for its next user.
            Some(library) if system.uid != 0 || !system.has_other_sources => {
                command.env("LD_PRELOAD", library);
                command.env("NSS_WRAPPER_PASSWD", &passwd_file).env("NSS_WRAPPER_GROUP", &group_file);
                Ok(())
            }
            _ if system.lacks(&users) && system.has_other_sources && system.uid == 0 => Err(SmbError::Value {
                what: "user",
                value: users
                    .iter()
                    .find(|user| system.account(&user.name).is_none())
                    .map_or_else(String::new, |u| u.name.clone()),
                why: "has no account of the system, which takes accounts from other sources than files: make one first",
            }),
            None if system.lacks(&users) => Err(SmbError::NoLibrary {
                library: "libnss_wrapper.so",
                why: "some SMB users have no account of the system".into(),
                package: "libnss-wrapper",
            }),
            _ => Ok(()),
        }
    }

    fn write(&self, users: &[User]) -> Result<(), SmbError> {
        let highest = highest_uid(&read(&self.directories.users())?);
        write_private(&self.directories.users(), render_list(users, highest).as_bytes()).map(drop)
    }

    /// Writes a configuration without shares for the tools, and returns a command with it.
    fn pdbedit(&self) -> Result<Command, SmbError> {
        let guest = self.guest_account()?;
        let global = Global {
            listen: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: crate::UNPRIVILEGED_PORT,
            guest_account: &guest,
            directories: self.directories,
            version: self.programs.version,
            modules: &self.programs.modules,
        };
        let path = self.directories.tools_configuration();
        write_private(&path, config::render(&global, &[])?.as_bytes())?;
        let mut command = run::command(&self.programs.pdbedit);
        command.arg("--configfile").arg(&path).arg("--debuglevel=0");
        self.show_accounts(&mut command)?;
        Ok(command)
    }

    /// Adds a user, or sets the password of an existing one. The password goes through standard input.
    pub(crate) async fn add(&self, clock: &Clock, name: &str, password: &str) -> Result<User, SmbError> {
        check_name(name)?;
        check_password(password)?;
        let mut users = self.list()?;
        let known = users.iter().find(|user| user.name.eq_ignore_ascii_case(name)).cloned();
        let system = System::read()?;
        let user = match known.or_else(|| system.account(name)) {
            Some(user) if user.uid == 0 && system.uid == 0 => {
                let why = "is the superuser: ACLs would not bind it";
                return Err(SmbError::Value { what: "user", value: name.to_owned(), why });
            }
            Some(user) => user,
            None => {
                let highest = highest_uid(&read(&self.directories.users())?);
                let uid = highest.map_or(FIRST_UID, |uid| uid.saturating_add(1));
                User { name: name.to_owned(), uid, gid: uid }
            }
        };
        if users.len() >= MAX_USERS {
            let why = "is one more than the 10,000 that are possible";
            return Err(SmbError::Value { what: "user", value: name.to_owned(), why });
        }
        let before = users.clone();
        users.retain(|other| other.name != user.name);
        users.push(user.clone());
        self.write(&users)?;
        let input = format!("{password}\n{password}\n");
        let edit = async {
            let mut command = self.pdbedit()?;
            command.arg("--create").arg("--password-from-stdin").arg("--user").arg(&user.name);
            run::output(clock, &mut command, Some(input.as_bytes()), EDIT_TIME).await
        };
        if let Err(error) = edit.await {
            self.write(&before)?;
            return Err(error);
        }
        self.require_private_passdb()?;
        Ok(user)
    }

    /// The database of hashes is for its owner alone, whatever `pdbedit` made of it.
    fn require_private_passdb(&self) -> Result<(), SmbError> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.directories.passdb();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).map_err(|why| SmbError::file(&path, why))
    }

    /// Removes a user.
    pub(crate) async fn remove(&self, clock: &Clock, name: &str) -> Result<(), SmbError> {
        let mut users = self.list()?;
        let Some(at) = users.iter().position(|user| user.name.eq_ignore_ascii_case(name)) else {
            return Err(SmbError::NoUser { name: name.to_owned() });
        };
        // First from Samba's database: a user that remains in the list alone cannot log on.
        let mut command = self.pdbedit()?;
        command.arg("--delete").arg("--user").arg(&users[at].name);
        run::output(clock, &mut command, None, EDIT_TIME).await?;
        users.remove(at);
        self.write(&users)?;
        let mut unused = run::command(&self.programs.pdbedit);
        self.show_accounts(&mut unused)
    }
}

/// The users of a state directory.
pub fn list(directories: &Directories) -> Result<Vec<User>, SmbError> {
    Ok(parse_list(&read(&directories.users())?))
}

/// Adds a user, or sets the password of an existing one.
///
/// # Errors
/// If the name or the password is not permitted, or `pdbedit` fails.
pub async fn add(clock: &Clock, directories: &Directories, name: &str, password: &str) -> Result<User, SmbError> {
    directories.create()?;
    let programs = Programs::find(clock).await?;
    Users { directories, programs: &programs }.add(clock, name, password).await
}

/// Removes a user.
///
/// # Errors
/// If there is no such user, or `pdbedit` fails.
pub async fn remove(clock: &Clock, directories: &Directories, name: &str) -> Result<(), SmbError> {
    directories.create()?;
    let programs = Programs::find(clock).await?;
    Users { directories, programs: &programs }.remove(clock, name).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_removed_user_is_not_given_again() {
        let both = render_list(&[user("ann", 200_000), user("bob", 200_001)], None);
        assert_eq!(highest_uid(&both), Some(200_001));
        let without_bob = render_list(&[user("ann", 200_000)], highest_uid(&both));
        assert_eq!(
            (without_bob.as_str(), highest_uid(&without_bob)),
            ("ann:200000:200000\n-:200001:200001\n", Some(200_001))
        );
        assert_eq!(parse_list(&without_bob), [user("ann", 200_000)]);
        let with_eve = render_list(&[user("ann", 200_000), user("eve", 200_002)], highest_uid(&without_bob));
        assert_eq!(with_eve, "ann:200000:200000\neve:200002:200002\n");
        assert_eq!(highest_uid("kim:1000:1000\n"), None, "numbers of the system's accounts do not count");
    }

    fn user(name: &str, uid: u32) -> User {
        User { name: name.into(), uid, gid: uid }
    }

    fn system(uid: u32) -> System {
        let passwd = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:\nann:x:1000:1000:Ann:/nonexistent:/bin/sh\n";
        System {
            passwd: passwd.into(),
            group: "root:x:0:\nnogroup:x:65534:\nann:x:1000:\n".into(),
            has_other_sources: false,
            uid,
            gid: uid,
        }
    }

    #[test]
    fn other_sources_of_accounts_are_recognized() {
        assert!(
            !has_other_sources("# x\npasswd:  files systemd # ldap\ngroup: files ldap\n") && !has_other_sources("")
        );
        assert!(has_other_sources("passwd: files sss") && has_other_sources(" passwd:ldap [NOTFOUND=return] files"));
    }

    #[test]
    fn names_and_passwords_are_checked() {
        for good in ["ann", "A.b-c_9", "_x", "9"] {
            check_name(good).unwrap();
        }
        for bad in ["", "-a", ".a", "a b", "a:b", "a\nb", "é", "a/b", &"x".repeat(33)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        check_password("a password, with: signs").unwrap();
        for bad in ["", "a\nb", &"x".repeat(128)] {
            let error = check_password(bad).unwrap_err().to_string();
            assert!(!error.contains("a\nb") && !error.contains("xxx"), "{error}");
        }
    }

    #[test]
    fn the_list_round_trips_and_ignores_other_lines() {
        let users = [user("ann", 1000), user("bob", 200_000)];
        assert_eq!(parse_list(&render_list(&users, None)), users);
        assert_eq!(parse_list("# note\n\nann:1\nbob:x:1\n-e:1:1\nok:7:8:more\n"), [User { gid: 8, ..user("ok", 7) }]);
    }

    #[test]
    fn root_sees_further_accounts_only_if_it_needs_them() {
        let root = system(0);
        assert!(!root.lacks(&[]) && !root.lacks(&[user("ann", 1000)]));
        let users = [user("ann", 1000), user("bob", 200_000)];
        assert!(root.lacks(&users));
        let (passwd, group) = root.rendered(&users);
        assert!(passwd.contains("\nbob:x:200000:200000:") && passwd.matches("ann:x:1000").count() == 1, "{passwd}");
        assert!(group.contains("weir-200000:x:200000:"), "{group}");
        assert_eq!(root.guest(), "nobody");
    }

    #[test]
    fn an_ordinary_user_is_all_users() {
        let runner = system(1000);
        assert!(!runner.lacks(&[]) && runner.lacks(&[user("bob", 200_000)]));
        let (passwd, _) = runner.rendered(&[user("bob", 200_000)]);
        let own = passwd.find("ann:x:1000").unwrap();
        assert!(own < passwd.find("bob:x:1000:1000").unwrap(), "the account of the system has precedence: {passwd}");
        assert_eq!(runner.guest(), "ann");
        let arbitrary = system(7777);
        assert!(arbitrary.lacks(&[]) && arbitrary.rendered(&[]).0.contains("weir:x:7777:7777"));
        assert_eq!(arbitrary.guest(), "weir");
    }
}
