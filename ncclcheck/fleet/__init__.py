"""Many results over time: kept as Parquet files in a folder, and asked which nodes fail or slow down."""
