//! Counters, gauges and histograms of a shard; parts of INFO, SLOWLOG and LATENCY.
