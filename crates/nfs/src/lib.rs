//! NFS version 3 server.
