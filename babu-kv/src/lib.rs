//! babu-kv
