//! Chores around the code: `cargo xtask {tidy,check,test,sim,fuzz,bench,judge}`.

fn main() {}
