// Consume, transform, produce, exactly once, by Kafka's own Java clients, while nodes of the cluster are killed: run by
// tests/process/test_nodes_java.py as `java -cp JARS ExactlyOnce.java SERVERS PREFIX`. Goes on until its standard input ends, then
// until all is transformed. Then it reads the result and prints what it has found, as one line of name=number.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.*;

public class ExactlyOnce {
    static final int PARTITIONS = 6, WORKERS = 3;
    static final long PATIENCE_MS = 120_000;
    static String servers, prefix;
    static volatile boolean writing = true, working = true;
    static final AtomicLong written = new AtomicLong(), transactions = new AtomicLong(), aborted = new AtomicLong(),
        producers = new AtomicLong(), longest = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        prefix = arguments[1];
        try (var admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            for (String name : List.of(prefix + "-in", prefix + "-out"))
                admin.createTopics(List.of(new NewTopic(name, PARTITIONS, (short) 1))).all().get();
        }
        var threads = Executors.newCachedThreadPool();
        var workers = new ArrayList<Future<?>>();
        for (int i = 0; i < WORKERS; i++) {
            String id = prefix + "-" + i;
            workers.add(threads.submit(() -> { work(id); return null; }));
        }
        var writer = threads.submit(() -> { write(); return null; });
        System.out.println("started");
        while (System.in.read() >= 0) { }
        writing = false;
        writer.get();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (behind() > 0) {
            if (System.currentTimeMillis() > deadline) fail(new AssertionError("still behind by " + behind()));
            Thread.sleep(200);
        }
        working = false;
        for (var worker : workers) worker.get();
        threads.shutdown();
        var found = read().stream().collect(Collectors.groupingBy(value -> value, Collectors.counting()));
        long lost = LongStream.range(0, written.get()).filter(number -> !found.containsKey("-" + number)).count();
        long twice = found.values().stream().filter(times -> times > 1).count();
        System.out.printf("written=%d committed=%d lost=%d twice=%d transactions=%d aborted=%d producers=%d longest_ms=%d%n",
            written.get(), found.size(), lost, twice, transactions.get(), aborted.get(), producers.get(), longest.get());
    }

    static void fail(Throwable error) {
        error.printStackTrace();
        System.exit(1);
    }

    static Map<String, Object> settings(Object... more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "reconnect.backoff.max.ms", 500));
        for (int i = 0; i < more.length; i += 2) settings.put((String) more[i], more[i + 1]);
        return settings;
    }

    static KafkaConsumer<String, String> consumer(String group) {
        return new KafkaConsumer<>(settings("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "isolation.level", "read_committed", "max.poll.records", 200, "session.timeout.ms", 6000,
            "heartbeat.interval.ms", 500), new StringDeserializer(), new StringDeserializer());
    }

    // Numbers from 0 on. A record that is given up ends the program: nobody could say what is lost then.
    static void write() throws Exception {
        try (var producer = new KafkaProducer<>(settings("linger.ms", 5), new StringSerializer(), new StringSerializer())) {
            for (long number = 0; writing; number++) {
                producer.send(new ProducerRecord<>(prefix + "-in", (int) (number % PARTITIONS), null, "" + number),
                    (sent, error) -> { if (error != null) fail(error); });
                written.set(number + 1);
                if (number % 10 == 9) Thread.sleep(10);
            }
        }
    }

    static void work(String id) {
        KafkaProducer<String, String> producer = null;
        long last = System.currentTimeMillis();
        try (var consumer = consumer(prefix)) {
            consumer.subscribe(List.of(prefix + "-in"));
            while (working) {
                try {
                    var records = consumer.poll(Duration.ofMillis(100));
                    if (records.isEmpty()) continue;
                    if (producer == null) producer = producer(id);
                    producer.beginTransaction();
                    var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
                    for (var record : records) {
                        producer.send(new ProducerRecord<>(prefix + "-out", record.partition(), null, "-" + record.value()));
                        offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    if (transactions.incrementAndGet() % 10 == 0) {
                        producer.flush();  // an abort drops what was not sent
                        throw new KafkaException("every tenth transaction is aborted");
                    }
                    commit(producer);
                    long now = System.currentTimeMillis(), before = last;
                    last = now;
                    longest.accumulateAndGet(now - before, Math::max);
                } catch (KafkaException error) {
                    if (error.getClass() != KafkaException.class) System.err.println(id + ": " + error);
                    aborted.incrementAndGet();
                    producer = ended(producer);
                    again(consumer);
                }
            }
        } catch (Throwable error) {
            fail(error);
        } finally {
            if (producer != null) producer.close(Duration.ofSeconds(10));
        }
    }

    static KafkaProducer<String, String> producer(String id) {
        var producer = new KafkaProducer<>(settings("transactional.id", id, "max.block.ms", 20_000), new StringSerializer(), new StringSerializer());
        producers.incrementAndGet();
        while (true) {
            try {
                producer.initTransactions();
                return producer;
            } catch (TimeoutException error) {
                System.err.println(id + ": " + error);
            }
        }
    }

    static void commit(KafkaProducer<String, String> producer) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) { // its outcome is open: only the same call may follow
                if (System.currentTimeMillis() > deadline) throw error;
            }
        }
    }

    // The producer after the end of its transaction, or null if another one is needed.
    static KafkaProducer<String, String> ended(KafkaProducer<String, String> producer) {
        if (producer == null) return null;
        try {
            producer.abortTransaction();
            return producer;
        } catch (KafkaException | IllegalStateException error) {
            producer.close(Duration.ZERO);
            return null;
        }
    }

    // To where the group has come.
    static void again(KafkaConsumer<String, String> consumer) {
        while (working) {
            try {
                var committed = consumer.committed(consumer.assignment());
                for (var partition : consumer.assignment()) {
                    if (committed.get(partition) == null) consumer.seekToBeginning(List.of(partition));
                    else consumer.seek(partition, committed.get(partition).offset());
                }
                return;
            } catch (KafkaException error) {
                System.err.println("committed: " + error);
            }
        }
    }

    static List<TopicPartition> partitions(String topic) {
        return IntStream.range(0, PARTITIONS).mapToObj(each -> new TopicPartition(topic, each)).toList();
    }

    // By how many offsets the group is behind.
    static long behind() {
        try (var consumer = consumer(prefix)) {
            var all = partitions(prefix + "-in");
            var committed = consumer.committed(new HashSet<>(all));
            return consumer.endOffsets(all).entrySet().stream()
                .mapToLong(end -> end.getValue() - (committed.get(end.getKey()) == null ? 0 : committed.get(end.getKey()).offset())).sum();
        }
    }

    // All that is committed.
    static List<String> read() {
        try (var consumer = consumer("reader")) {
            var all = partitions(prefix + "-out");
            var ends = consumer.endOffsets(all);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            var found = new ArrayList<String>();
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (!all.stream().allMatch(one -> consumer.position(one) >= ends.get(one))) {
                if (System.currentTimeMillis() > deadline) fail(new AssertionError("the end was not reached: " + ends));
                consumer.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.value()));
            }
            return found;
        }
    }
}
