"""What ``Broker(...)`` takes, for editors and type checkers. Written by docs/generate.py (`make docs`).

Tests: tests/client/test_embedded.py.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict


class Settings(TypedDict, total=False):
    node_id: int
    broker_rack: str | None
    cluster_id: str | None
    data_dir_accept_foreign_files: bool
    create_topics: Sequence[str]
    users: Sequence[str]
    shutdown_timeout_ms: int
    switch_interval_us: int
    ignored_kafka_settings: Mapping[str, str]
    logging_level: Literal["debug", "info", "warning", "error"]
    logging_format: Literal["auto", "text", "json"]
    logging_file: str | None
    tracing_sample_ratio: float
    tracing_endpoint: str
    listeners: Sequence[str]
    advertised_listeners: Mapping[str, str]
    listener_settings: Mapping[str, str]
    control_listener: str | None
    allow_anonymous_listeners: bool
    network_threads: int
    io_threads: int
    queued_max_requests: int
    queued_max_request_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    socket_receive_buffer_bytes: int
    socket_listen_backlog_size: int
    connections_max_idle_ms: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    max_connection_creation_rate: int
    outgoing_high_water_bytes: int
    outgoing_low_water_bytes: int
    quota_window_num: int
    quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    sasl_enabled_mechanisms: Sequence[str]
    sasl_server_max_receive_size: int
    connection_failed_authentication_delay_ms: int
    connections_max_reauth_ms: int
    sasl_oauthbearer_jwks_endpoint_url: str | None
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int
    sasl_oauthbearer_expected_audience: Sequence[str]
    sasl_oauthbearer_expected_issuer: str | None
    sasl_oauthbearer_clock_skew_seconds: int
    sasl_oauthbearer_sub_claim_name: str
    sasl_oauthbearer_scope_claim_name: str
    ssl_keystore_location: str | None
    ssl_keystore_password: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_keystore_key: str | None
    ssl_key_password: str | None
    ssl_truststore_location: str | None
    ssl_truststore_password: str | None
    ssl_truststore_certificates: str | None
    ssl_crl_location: str | None
    ssl_client_auth: Literal["none", "requested", "required"]
    ssl_principal_mapping_rules: str
    ssl_enabled_protocols: Sequence[str]
    ssl_cipher_suites: Sequence[str]
    ssl_allow_dn_changes: bool
    ssl_allow_san_changes: bool
    handshake_timeout_ms: int
    pulsar_max_message_bytes: int
    pulsar_cache_bytes: int
    pulsar_reader_threads: int
    pulsar_message_expiry_check_interval_ms: int
    pulsar_backlog_quota_check_interval_ms: int
    pulsar_namespaces: Sequence[str]
    pulsar_keep_alive_interval_ms: int
    pulsar_max_producers_per_topic: int
    pulsar_max_subscriptions_per_topic: int
    pulsar_max_consumers_per_topic: int
    pulsar_max_consumers_per_subscription: int
    pulsar_max_unacked_per_consumer: int
    pulsar_max_unacked_per_subscription: int
    pulsar_key_shared_consistent_hashing: bool
    pulsar_failover_delay_ms: int
    pulsar_delayed_delivery_tick_ms: int
    pulsar_delayed_delivery_strict: bool
    pulsar_auto_create_topics: bool
    pulsar_auto_topic_partitions: int
    pulsar_token_secret_key: str | None
    pulsar_anonymous_user: str | None
    pulsar_deduplication: bool
    pulsar_dispatch_rate_messages: int
    pulsar_dispatch_rate_bytes: int
    num_partitions: int
    auto_create_topics_enable: bool
    default_replication_factor: int
    delete_topic_enable: bool
    message_max_bytes: int
    fetch_max_bytes: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    log_visible: Literal["written", "durable"]
    log_record_validation: Literal["lengths", "full"]
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_after_max_ms: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    telemetry_max_bytes: int
    log_segment_bytes: int
    log_roll_ms: int
    log_roll_jitter_ms: int
    log_retention_ms: int
    log_retention_bytes: int
    log_local_retention_ms: int
    log_local_retention_bytes: int
    log_retention_check_interval_ms: int
    log_cleanup_policy: Literal["delete", "compact", "delete,compact", "compact,delete"]
    log_segment_delete_delay_ms: int
    log_index_interval_bytes: int
    log_index_size_max_bytes: int
    log_preallocate: bool
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    max_open_files: int
    scrub_bytes_per_second: int
    catalogue: str | None
    catalogue_schema: str
    standby: bool
    nodes: int
    machine_weight: float
    ship_linger_ms: int
    objects: str | None
    remote_log_manager_task_interval_ms: int
    remote_cache_bytes: int
    remote_object_delete_delay_ms: int
    log_cleaner_enable: bool
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_backoff_ms: int
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_delete_retention_ms: int
    log_cleaner_min_compaction_lag_ms: int
    log_cleaner_max_compaction_lag_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_size: int
    group_max_bytes: int
    coordinator_max_bytes: int
    offset_metadata_max_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    group_share_max_size: int
    group_share_session_timeout_ms: int
    group_share_min_session_timeout_ms: int
    group_share_max_session_timeout_ms: int
    group_share_heartbeat_interval_ms: int
    group_share_min_heartbeat_interval_ms: int
    group_share_max_heartbeat_interval_ms: int
    group_share_record_lock_duration_ms: int
    group_share_min_record_lock_duration_ms: int
    group_share_max_record_lock_duration_ms: int
    group_share_delivery_count_limit: int
    group_share_min_delivery_count_limit: int
    group_share_max_delivery_count_limit: int
    group_share_partition_max_record_locks: int
    group_share_min_partition_max_record_locks: int
    group_share_max_partition_max_record_locks: int
    group_share_max_share_sessions: int
    feature_max_levels: Mapping[str, int]
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: Sequence[str]
    group_consumer_migration_policy: Literal["bidirectional", "upgrade", "downgrade", "disabled"]
    group_consumer_regex_refresh_interval_ms: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    http_max_body_bytes: int
    http_allow_unencrypted_logins: bool
    http_request_timeout_ms: int
    http_allowed_hosts: Sequence[str]
    faults_enabled: bool
    shuffle_memory_bytes: int
    shuffle_disk_bytes: int
    shuffle_released_bytes: int
    shuffle_quota_bytes: int
    shuffle_pipelined_bytes: int
    shuffle_write_credit_buffers: int
    shuffle_partition_request_timeout_ms: int
    shuffle_blocking_ttl_ms: int
    shuffle_pipelined_retention_ms: int
    shuffle_writer_retention_ms: int
    authorizer_class_name: Literal["acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"] | None
    super_users: str
    allow_everyone_if_no_acl_found: bool
    acls_max: int
