//! Client code of shardq's tools, shared with the server's tests.
