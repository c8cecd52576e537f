// Transactions by Kafka's own Java clients: run by test_java.py as `java -cp JARS Transactions.java SERVERS PREFIX`.
// Prints the name of each scenario that went well; the first that does not ends it with a stack trace.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class Transactions {
    static String servers;
    static String prefix;
    static Admin admin;

    interface Scenario { void run(String name) throws Exception; }

    interface Action { void run() throws Exception; }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        prefix = arguments[1];
        try (Admin client = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin = client;
            scenario("commit-and-abort", Transactions::commitAndAbort);
            scenario("many-partitions", Transactions::manyPartitions);
            scenario("transform", Transactions::transform);
            scenario("offsets-of-old-members", Transactions::offsetsOfOldMembers);
            scenario("zombie", Transactions::zombie);
            scenario("too-slow", Transactions::tooSlow);
            scenario("described", Transactions::described);
            scenario("aborted-by-admin", Transactions::abortedByAdmin);
            scenario("fenced-by-admin", Transactions::fencedByAdmin);
        }
    }

    static void scenario(String name, Scenario scenario) {
        try {
            scenario.run(prefix + "-" + name);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.out.println(name);
    }

    static void check(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) throw new AssertionError("expected " + expected + ", got " + actual);
    }

    @SafeVarargs
    static void fails(Action action, Class<? extends Throwable>... kinds) throws Exception {
        try {
            action.run();
        } catch (Throwable error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            if (List.of(kinds).contains(cause.getClass())) return;
            throw new AssertionError("failed otherwise than with " + List.of(kinds), error);
        }
        throw new AssertionError("did not fail with " + List.of(kinds));
    }

    static void create(String topic, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(partitions), Optional.empty()))).all().get();
    }

    static Map<String, Object> settings(Object... more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers));
        for (int i = 0; i < more.length; i += 2) settings.put((String) more[i], more[i + 1]);
        return settings;
    }

    static KafkaProducer<String, String> producer(String id, Object... more) {
        var settings = settings(more);
        settings.put("transactional.id", id);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(String group, String isolation) {
        var settings = settings("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "heartbeat.interval.ms", 100, "session.timeout.ms", 60_000, "isolation.level", isolation, "max.poll.records", 100);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    // All there is in a topic, for this isolation level: up to the end that such a reader is told.
    static List<String> all(String topic, String isolation) {
        try (var consumer = consumer("reader", isolation)) {
            var partitions = consumer.partitionsFor(topic).stream()
                .map(one -> new TopicPartition(topic, one.partition())).collect(Collectors.toList());
            var ends = consumer.endOffsets(partitions);
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var found = new ArrayList<String>();
            for (int tries = 0; tries < 600; tries++) {
                if (partitions.stream().allMatch(one -> consumer.position(one) >= ends.get(one))) return found;
                consumer.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.value()));
            }
            throw new AssertionError("the end was not reached: " + ends);
        }
    }

    static void commitAndAbort(String name) throws Exception {
        create(name, 1);
        try (var producer = producer(name)) {
            producer.initTransactions();
            for (String value : List.of("a", "b", "c", "d")) {
                producer.beginTransaction();
                for (int i = 0; i < 3; i++) producer.send(new ProducerRecord<>(name, value + i));
                producer.flush();
                check(false, all(name, "read_committed").contains(value + "0"));
                if (value.equals("b") || value.equals("d")) producer.abortTransaction();
                else producer.commitTransaction();
            }
        }
        check(List.of("a0", "a1", "a2", "c0", "c1", "c2"), all(name, "read_committed"));
        check(12, all(name, "read_uncommitted").size());
    }

    // Far more than fit into one batch, over partitions that are added one by one.
    static void manyPartitions(String name) throws Exception {
        create(name, 12);
        try (var producer = producer(name, "compression.type", "lz4", "linger.ms", 2)) {
            producer.initTransactions();
            for (boolean commit : List.of(true, false, true)) {
                producer.beginTransaction();
                for (int i = 0; i < 3000; i++) producer.send(new ProducerRecord<>(name, i % 12, "key", "" + commit));
                if (commit) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        check(Map.of("true", 6000L),
            all(name, "read_committed").stream().collect(Collectors.groupingBy(value -> value, Collectors.counting())));
    }

    // Consume, transform, produce; every third transaction is aborted and its records read again.
    static void transform(String name) throws Exception {
        String source = name + "-in", target = name + "-out";
        create(source, 2);
        create(target, 2);
        try (var producer = producer(name + "-source")) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int i = 0; i < 1000; i++) producer.send(new ProducerRecord<>(source, i % 2, null, "" + i));
            producer.commitTransaction();
            producer.beginTransaction();
            for (int i = 1000; i < 1200; i++) producer.send(new ProducerRecord<>(source, i % 2, null, "" + i));
            producer.abortTransaction();
        }
        int ended = 0;
        long done = 0;
        try (var consumer = consumer(name, "read_committed"); var producer = producer(name)) {
            consumer.subscribe(List.of(source));
            producer.initTransactions();
            for (int tries = 0; done < 1000 && tries < 600; tries++) {
                var records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
                for (var record : records) {
                    producer.send(new ProducerRecord<>(target, record.partition(), null, "-" + record.value()));
                    offsets.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (++ended % 3 == 0) {
                    producer.flush();  // an abort drops what was not sent
                    producer.abortTransaction();
                    var committed = consumer.committed(consumer.assignment());
                    for (var one : consumer.assignment())
                        consumer.seek(one, committed.get(one) == null ? 0 : committed.get(one).offset());
                } else {
                    producer.commitTransaction();
                    done += records.count();
                }
            }
            check(1000L, done);
        }
        var expected = IntStream.range(0, 1000).mapToObj(i -> "-" + i).sorted().collect(Collectors.toList());
        check(expected, all(target, "read_committed").stream().sorted().collect(Collectors.toList()));
        check(true, all(target, "read_uncommitted").size() > 1000);
        var committed = admin.listConsumerGroupOffsets(name).partitionsToOffsetAndMetadata().get();
        for (int partition = 0; partition < 2; partition++)
            check(500L, committed.get(new TopicPartition(source, partition)).offset());
    }

    // KIP-447: who was thrown out of its group commits nothing more for it.
    static void offsetsOfOldMembers(String name) throws Exception {
        create(name, 1);
        try (var consumer = consumer(name, "read_committed"); var producer = producer(name)) {
            consumer.subscribe(List.of(name));
            while (consumer.assignment().isEmpty()) consumer.poll(Duration.ofMillis(100));
            var offsets = Map.of(new TopicPartition(name, 0), new OffsetAndMetadata(1));
            var metadata = consumer.groupMetadata();
            producer.initTransactions();
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(offsets, metadata);
            producer.commitTransaction();
            var later = new ConsumerGroupMetadata(name, metadata.generationId() - 1, metadata.memberId(), Optional.empty());
            producer.beginTransaction();
            fails(() -> producer.sendOffsetsToTransaction(offsets, later), CommitFailedException.class);
            producer.abortTransaction();
        }
    }

    static void zombie(String name) throws Exception {
        create(name, 1);
        try (var old = producer(name)) {
            old.initTransactions();
            old.beginTransaction();
            old.send(new ProducerRecord<>(name, "old")).get();
            try (var young = producer(name)) {
                young.initTransactions();
                young.beginTransaction();
                young.send(new ProducerRecord<>(name, "young")).get();
                fails(() -> {
                    old.send(new ProducerRecord<>(name, "zombie")).get();
                    old.commitTransaction();
                }, ProducerFencedException.class, InvalidProducerEpochException.class);
                fails(old::commitTransaction, ProducerFencedException.class, InvalidProducerEpochException.class);
                young.commitTransaction();
            }
        }
        check(List.of("young"), all(name, "read_committed"));
    }

    // Its transaction is aborted under it.
    static void tooSlow(String name) throws Exception {
        create(name, 1);
        try (var producer = producer(name, "transaction.timeout.ms", 2000)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "late")).get();
            for (int tries = 0; state(name) != TransactionState.COMPLETE_ABORT; tries++) {
                if (tries == 600) throw new AssertionError("it is " + state(name));
                Thread.sleep(100);
            }
            fails(producer::commitTransaction, ProducerFencedException.class, InvalidProducerEpochException.class);
        }
        try (var producer = producer(name)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "next"));
            producer.commitTransaction();
        }
        check(List.of("next"), all(name, "read_committed"));
    }

    static TransactionState state(String name) throws Exception {
        return describe(name).state();
    }

    static TransactionDescription describe(String name) throws Exception {
        return admin.describeTransactions(List.of(name)).description(name).get();
    }

    static List<ProducerState> producers(TopicPartition partition) throws Exception {
        return admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
    }

    static void described(String name) throws Exception {
        create(name, 2);
        var partition = new TopicPartition(name, 1);
        fails(() -> describe(name), TransactionalIdNotFoundException.class);
        try (var producer = producer(name, "transaction.timeout.ms", 20_000)) {
            producer.initTransactions();
            check(TransactionState.EMPTY, state(name));
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, 1, null, "value")).get();
            var described = describe(name);
            check(TransactionState.ONGOING, described.state());
            check(Set.of(partition), described.topicPartitions());
            check(20_000L, described.transactionTimeoutMs());
            check(true, described.transactionStartTimeMs().isPresent());
            var states = List.of(TransactionState.ONGOING);
            var listed = admin.listTransactions(new ListTransactionsOptions().filterStates(states)).all().get().stream()
                .filter(one -> one.transactionalId().equals(name)).collect(Collectors.toList());
            check(1, listed.size());
            check(described.producerId(), listed.get(0).producerId());
            check(TransactionState.ONGOING, listed.get(0).state());
            var active = producers(partition).get(0);
            check(described.producerId(), active.producerId());
            check(described.producerEpoch(), active.producerEpoch());
            check(0L, active.currentTransactionStartOffset().getAsLong());
            check(List.of(), producers(new TopicPartition(name, 0)));
            producer.commitTransaction();
            check(TransactionState.COMPLETE_COMMIT, state(name));
            check(OptionalLong.empty(), producers(partition).get(0).currentTransactionStartOffset());
        }
    }

    // As `kafka-transactions.sh abort` does it: by what DescribeProducers says of the partition.
    static void abortedByAdmin(String name) throws Exception {
        create(name, 2);
        var partition = new TopicPartition(name, 0);
        try (var producer = producer(name)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, 0, null, "zero")).get();
            producer.send(new ProducerRecord<>(name, 1, null, "one")).get();
            var active = producers(partition).get(0);
            short epoch = (short) active.producerEpoch();
            var stale = new AbortTransactionSpec(partition, active.producerId(), (short) (epoch - 1), 0);
            fails(() -> admin.abortTransaction(stale).all().get(), InvalidProducerEpochException.class);
            check(TransactionState.ONGOING, state(name));
            admin.abortTransaction(new AbortTransactionSpec(partition, active.producerId(), epoch, 0)).all().get();
            check(TransactionState.COMPLETE_ABORT, state(name));
            check(OptionalLong.empty(), producers(partition).get(0).currentTransactionStartOffset());
            fails(producer::commitTransaction, ProducerFencedException.class, InvalidProducerEpochException.class);
        }
        check(List.of(), all(name, "read_committed"));
    }

    static void fencedByAdmin(String name) throws Exception {
        create(name, 1);
        try (var producer = producer(name)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "value")).get();
            admin.fenceProducers(List.of(name)).all().get();
            fails(producer::commitTransaction, ProducerFencedException.class, InvalidProducerEpochException.class);
        }
        check(List.of(), all(name, "read_committed"));
    }
}
