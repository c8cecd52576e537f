// Kafka's own Java clients against the broker: run by test_java.py as `java -cp JARS KafkaClients.java SERVERS PREFIX`.
// Prints the name of each scenario that went well; the first that does not ends it with a stack trace.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

public class KafkaClients {
    static String servers;
    static String prefix;
    static Admin admin;

    interface Scenario { void run(String topic) throws Exception; }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        prefix = arguments[1];
        try (Admin client = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin = client;
            for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
                scenario("codec-" + codec, topic -> codec(topic, codec));
            scenario("acks", KafkaClients::acks);
            scenario("too-large", KafkaClients::tooLarge);
            scenario("group", KafkaClients::group);
            scenario("cooperative", KafkaClients::cooperative);
            scenario("static", KafkaClients::staticMember);
            scenario("positions", KafkaClients::positions);
            scenario("topics", KafkaClients::topics);
            scenario("groups", KafkaClients::groups);
            scenario("absent", KafkaClients::absent);
        }
    }

    static void scenario(String name, Scenario scenario) throws Exception {
        scenario.run(prefix + "-" + name);
        System.out.println(name);
    }

    static void check(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) throw new AssertionError("expected " + expected + ", got " + actual);
    }

    static void create(String topic, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(partitions), Optional.empty()))).all().get();
    }

    static KafkaProducer<String, String> producer(Object... more) {
        return new KafkaProducer<>(settings(more), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, Object... more) {
        Map<String, Object> settings = settings(more);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("heartbeat.interval.ms", 100);
        settings.put("session.timeout.ms", 60_000);
        settings.put("enable.auto.commit", false);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static Map<String, Object> settings(Object... more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers));
        for (int i = 0; i < more.length; i += 2) settings.put((String) more[i], more[i + 1]);
        return settings;
    }

    static void write(String topic, int count) throws Exception {
        try (var producer = producer()) {
            for (int i = 0; i < count; i++)
                producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + i, "key", "" + i)).get();
        }
    }

    static List<ConsumerRecord<String, String>> read(Consumer<String, String> consumer, int count) {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        for (int tries = 0; found.size() < count; tries++) {
            if (tries == 300) throw new AssertionError(found.size() + " of " + count + " records came");
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
        }
        return found;
    }

    // Idempotent, as producers are by default: a record of every shape, and enough of them for several batches.
    static void codec(String topic, String codec) throws Exception {
        create(topic, 1);
        var records = new ArrayList<ProducerRecord<String, String>>();
        records.add(new ProducerRecord<>(topic, 0, "key", "value"));
        records.add(new ProducerRecord<>(topic, 0, null, ""));
        records.add(new ProducerRecord<>(topic, 0, "", null));
        records.add(new ProducerRecord<>(topic, 0, null, "key", "value", List.of(
            new RecordHeader("one", "1".getBytes()), new RecordHeader("one", "2".getBytes()), new RecordHeader("null", (byte[]) null))));
        for (int i = 0; i < 2000; i++) records.add(new ProducerRecord<>(topic, 0, "key" + i, "value ".repeat(i % 50)));
        try (var producer = producer("compression.type", codec, "linger.ms", 5)) {
            var sent = new ArrayList<Future<RecordMetadata>>();
            for (var record : records) sent.add(producer.send(record));
            for (int i = 0; i < sent.size(); i++) check((long) i, sent.get(i).get().offset());
        }
        try (var consumer = consumer(topic)) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            var found = read(consumer, records.size());
            for (int i = 0; i < records.size(); i++) {
                check(records.get(i).key(), found.get(i).key());
                check(records.get(i).value(), found.get(i).value());
                check(records.get(i).headers(), found.get(i).headers());
            }
        }
    }

    static void acks(String topic) throws Exception {
        create(topic, 1);
        for (String acks : List.of("0", "1", "all"))
            try (var producer = producer("acks", acks, "enable.idempotence", false)) {
                var sent = producer.send(new ProducerRecord<>(topic, 0, null, acks)).get();
                check(!acks.equals("0"), sent.hasOffset());
            }
        try (var consumer = consumer(topic)) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            check(List.of("0", "1", "all"), read(consumer, 3).stream().map(ConsumerRecord::value).toList());
        }
    }

    static void tooLarge(String topic) throws Exception {
        create(topic, 1);
        try (var producer = producer("max.request.size", 10_000_000)) {
            expect(RecordTooLargeException.class, producer.send(new ProducerRecord<>(topic, "v".repeat(1_100_000))));
            check(0L, producer.send(new ProducerRecord<>(topic, "v".repeat(1_000_000))).get().offset());
        }
    }

    static void expect(Class<? extends Exception> kind, Future<?> future) throws Exception {
        try {
            future.get();
        } catch (ExecutionException error) {
            if (kind.isInstance(error.getCause())) return;
            throw error;
        }
        throw new AssertionError(kind + " expected");
    }

    static void group(String topic) throws Exception {
        create(topic, 1);
        write(topic, 4);
        try (var consumer = consumer(topic)) {
            consumer.subscribe(List.of(topic));
            read(consumer, 4);
            consumer.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(2, Optional.of(0), "a note")));
        }
        try (var consumer = consumer(topic)) {
            consumer.subscribe(List.of(topic));
            check(List.of("2", "3"), read(consumer, 2).stream().map(ConsumerRecord::value).toList());
            var committed = consumer.committed(Set.of(new TopicPartition(topic, 0))).get(new TopicPartition(topic, 0));
            check(new OffsetAndMetadata(2, Optional.of(0), "a note"), committed);
        }
    }

    static void settle(int partitions, List<KafkaConsumer<String, String>> members) {
        for (int tries = 0; ; tries++) {
            if (tries == 1200) throw new AssertionError("the group does not settle");
            for (var member : members) member.poll(Duration.ofMillis(50));
            int owned = members.stream().mapToInt(member -> member.assignment().size()).sum();
            if (owned == partitions && members.stream().noneMatch(member -> member.assignment().isEmpty())) return;
        }
    }

    static void cooperative(String topic) throws Exception {
        create(topic, 4);
        String strategy = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor";
        try (var first = consumer(topic, "partition.assignment.strategy", strategy)) {
            var revoked = new ArrayList<TopicPartition>();
            first.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                public void onPartitionsRevoked(Collection<TopicPartition> some) { revoked.addAll(some); }
                public void onPartitionsAssigned(Collection<TopicPartition> some) {}
            });
            settle(4, List.of(first));
            try (var second = consumer(topic, "partition.assignment.strategy", strategy)) {
                second.subscribe(List.of(topic));
                settle(4, List.of(first, second));
                check(Set.copyOf(revoked), second.assignment());
                check(2, first.assignment().size());
            }
            settle(4, List.of(first));
        }
    }

    static void staticMember(String topic) throws Exception {
        create(topic, 4);
        try (var staying = consumer(topic, "group.instance.id", "staying")) {
            staying.subscribe(List.of(topic));
            Set<TopicPartition> before, kept;
            try (var going = consumer(topic, "group.instance.id", "going")) {
                going.subscribe(List.of(topic));
                settle(4, List.of(staying, going));
                before = Set.copyOf(going.assignment());
                kept = Set.copyOf(staying.assignment());
            }
            try (var back = consumer(topic, "group.instance.id", "going")) {
                back.subscribe(List.of(topic));
                settle(4, List.of(staying, back));
                check(before, back.assignment());
                check(kept, staying.assignment());
            }
        }
    }

    static void positions(String topic) throws Exception {
        create(topic, 1);
        write(topic, 10);
        var partition = new TopicPartition(topic, 0);
        try (var consumer = consumer(topic)) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, 7);
            check(List.of("7", "8", "9"), read(consumer, 3).stream().map(ConsumerRecord::value).toList());
            check(10L, consumer.position(partition));
            check(3L, consumer.offsetsForTimes(Map.of(partition, 1_700_000_000_003L)).get(partition).offset());
            check(null, consumer.offsetsForTimes(Map.of(partition, 1_700_000_000_010L)).get(partition));
            check(Map.of(partition, 0L), consumer.beginningOffsets(List.of(partition)));
            check(Map.of(partition, 10L), consumer.endOffsets(List.of(partition)));
            admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).all().get();
            check(Map.of(partition, 4L), consumer.beginningOffsets(List.of(partition)));
            consumer.seek(partition, 0);
            check("4", read(consumer, 1).get(0).value());
        }
        var largest = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).partitionResult(partition).get();
        check(9L, largest.offset());
    }

    static void topics(String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "60000")))).all().get();
        expect(TopicExistsException.class, admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all());
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        check(3, admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var change = new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        check("compact", config.get("cleanup.policy").value());
        check("60000", config.get("retention.ms").value());
        check(ConfigEntry.ConfigSource.DEFAULT_CONFIG, config.get("segment.bytes").source());
        var wrong = new AlterConfigOp(new ConfigEntry("retention.ms", "long"), AlterConfigOp.OpType.SET);
        expect(InvalidConfigurationException.class, admin.incrementalAlterConfigs(Map.of(resource, List.of(wrong))).all());
        // tests/compat may run against several nodes.
        var nodes = Integer.parseInt(System.getenv().getOrDefault("BROKER_NODES", "1"));
        check(nodes, admin.describeCluster().nodes().get().size());
        check(1, admin.describeLogDirs(List.of(1)).allDescriptions().get().size());
        admin.deleteTopics(List.of(topic)).all().get();
        check(false, admin.listTopics().names().get().contains(topic));
    }

    static void groups(String topic) throws Exception {
        create(topic, 1);
        write(topic, 2);
        try (var consumer = consumer(topic)) {
            consumer.subscribe(List.of(topic));
            read(consumer, 2);
            consumer.commitSync();
            var described = admin.describeConsumerGroups(List.of(topic)).all().get().get(topic);
            check("Stable", described.state().toString());
            check(1, described.members().size());
            expect(GroupNotEmptyException.class, admin.deleteConsumerGroups(List.of(topic)).all());
        }
        var partition = new TopicPartition(topic, 0);
        check(2L, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(partition).offset());
        admin.alterConsumerGroupOffsets(topic, Map.of(partition, new OffsetAndMetadata(1))).all().get();
        check(1L, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(partition).offset());
        check(true, admin.listConsumerGroups().all().get().stream().anyMatch(one -> one.groupId().equals(topic)));
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        check(Map.of(), admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get());
    }

    static void absent(String topic) throws Exception {
        expect(UnknownTopicOrPartitionException.class, admin.describeTopics(List.of(topic)).allTopicNames());
        expect(UnknownTopicOrPartitionException.class, admin.deleteTopics(List.of(topic)).all());
        expect(GroupIdNotFoundException.class, admin.deleteConsumerGroups(List.of(topic)).all());
        // A write makes it.
        try (var producer = producer()) {
            check(0L, producer.send(new ProducerRecord<>(topic, "value")).get().offset());
        }
    }
}
