//! What to check on a client that this program cannot look into.

/// An operating system of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientSystem {
    /// Name.
    pub name: &'static str,
    /// Commands, each with what its output should say.
    pub checks: &'static [(&'static str, &'static str)],
}

/// Commands for each system. `SERVER` stands for the address of the server.
pub const SYSTEMS: [ClientSystem; 3] = [
    ClientSystem {
        name: "Windows (PowerShell)",
        checks: &[
            (
                "Get-NetAdapter | Format-List Name, LinkSpeed, FullDuplex, DriverVersion, DriverDate",
                "the rate of the link, full duplex, a current driver",
            ),
            ("Get-NetIPInterface | Format-Table InterfaceAlias, NlMtu", "the same MTU as on the server"),
            ("ping -f -l 8972 SERVER", "an answer, if both sides use jumbo frames; with MTU 1500: -l 1472"),
            (
                "Get-NetAdapterAdvancedProperty | Where-Object DisplayName -match 'Jumbo|Interrupt|Buffers'",
                "jumbo packet as wanted, interrupt moderation, receive buffers",
            ),
            (
                "Get-SmbConnection | Format-Table ServerName, Dialect, Signed, Encrypted",
                "dialect 3.1.1; signing and encryption only if wanted",
            ),
            ("Get-SmbMultichannelConnection", "one line for each link in use"),
        ],
    },
    ClientSystem {
        name: "macOS",
        checks: &[
            (
                "ifconfig | grep -E '^[a-z]|mtu|media'",
                "the rate of the link, full-duplex, the same MTU as on the server",
            ),
            ("ping -D -s 8972 -c 3 SERVER", "an answer, if both sides use jumbo frames; with MTU 1500: -s 1472"),
            (
                "smbutil statshares -a",
                "SMB_VERSION 3.x; SIGNING_ON only if wanted (it costs most of the speed of some releases)",
            ),
            ("nfsstat -m", "rsize and wsize as the server offers them, tcp"),
            ("netstat -s -p tcp | grep -i retransmit", "a number that does not grow during a transfer"),
        ],
    },
    ClientSystem {
        name: "Linux",
        checks: &[
            (
                "ip -s link; ethtool DEVICE | grep -E 'Speed|Duplex'",
                "the rate of the link, full duplex, no errors, the same MTU as on the server",
            ),
            ("ping -M do -s 8972 -c 3 SERVER", "an answer, if both sides use jumbo frames; with MTU 1500: -s 1472"),
            ("nfsstat -m", "rsize and wsize of 1048576, and nconnect if one connection is not enough"),
            ("ss -tin dst SERVER", "few bytes_retrans; rwnd_limited and sndbuf_limited near 0 %"),
            ("grep -H . /sys/class/bdi/*/read_ahead_kb", "for NFS mounts 15360 or more, if sequential reads are slow"),
        ],
    },
];
