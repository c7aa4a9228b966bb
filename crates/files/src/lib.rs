//! POSIX files and directories over objects (the ZPL).
