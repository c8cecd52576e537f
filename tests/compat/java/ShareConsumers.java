// Kafka's own share consumer against the broker: run by test_share_consumers.py, either as
//   java -cp JARS ShareConsumers.java scenarios SERVERS PREFIX
// which prints the name of each scenario that went well, or as
//   java -cp JARS ShareConsumers.java worker SERVERS GROUP TOPIC
// which prints the value of each record once its acknowledgement has been answered, with a question mark before it if nobody
// knows whether that counts, until its standard input ends.

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
import org.apache.kafka.common.serialization.*;

public class ShareConsumers {
    static String servers;
    static Admin admin;

    interface Scenario { void run(String name) throws Exception; }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[1];
        if (arguments[0].equals("worker")) {
            worker(arguments[2], arguments[3]);
            return;
        }
        try (Admin client = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin = client;
            for (String codec : List.of("none", "zstd"))
                scenario(arguments[2], "implicit-" + codec, name -> implicit(name, codec));
            scenario(arguments[2], "explicit", ShareConsumers::explicit);
            scenario(arguments[2], "renew", ShareConsumers::renew);
            scenario(arguments[2], "strict", ShareConsumers::strict);
            scenario(arguments[2], "two-members", ShareConsumers::twoMembers);
            scenario(arguments[2], "read-committed", ShareConsumers::readCommitted);
            scenario(arguments[2], "described", ShareConsumers::described);
            scenario(arguments[2], "offsets", ShareConsumers::offsets);
        }
    }

    static void scenario(String prefix, String name, Scenario scenario) throws Exception {
        scenario.run(prefix + "-" + name);
        System.out.println(name);
    }

    static void check(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) throw new AssertionError("expected " + expected + ", got " + actual);
    }

    static void create(String name, int partitions, String... settings) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, Optional.of(partitions), Optional.empty()))).all().get();
        var changes = new ArrayList<AlterConfigOp>();
        changes.add(new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET));
        for (int i = 0; i < settings.length; i += 2)
            changes.add(new AlterConfigOp(new ConfigEntry(settings[i], settings[i + 1]), AlterConfigOp.OpType.SET));
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, name), changes)).all().get();
    }

    static Map<String, Object> settings(Object... more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers));
        for (int i = 0; i < more.length; i += 2) settings.put((String) more[i], more[i + 1]);
        return settings;
    }

    static KafkaProducer<String, String> producer(Object... more) {
        return new KafkaProducer<>(settings(more), new StringSerializer(), new StringSerializer());
    }

    static KafkaShareConsumer<String, String> consumer(String group, String mode, Object... more) {
        Map<String, Object> settings = settings(more);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", mode);
        var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(group));
        return consumer;
    }

    static void write(String topic, int count, Object... more) throws Exception {
        try (var producer = producer(more)) {
            for (int i = 0; i < count; i++) producer.send(new ProducerRecord<>(topic, "" + i));
            producer.flush();
        }
    }

    static List<ConsumerRecord<String, String>> poll(KafkaShareConsumer<String, String> consumer, int least) {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        for (int tries = 0; found.size() < least; tries++) {
            if (tries == 300) throw new AssertionError(found.size() + " of " + least + " records came");
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
        }
        return found;
    }

    static void commit(KafkaShareConsumer<String, String> consumer) {
        consumer.commitSync(Duration.ofSeconds(30)).values().forEach(error -> check(Optional.empty(), error));
    }

    static Set<String> numbers(int count) {
        return IntStream.range(0, count).mapToObj(i -> "" + i).collect(Collectors.toSet());
    }

    static Set<String> values(List<ConsumerRecord<String, String>> records) {
        var values = records.stream().map(ConsumerRecord::value).collect(Collectors.toSet());
        check(records.size(), values.size());
        return values;
    }

    // All records once, over several partitions and batches; after the acknowledgement there is nothing left for another one.
    static void implicit(String name, String codec) throws Exception {
        create(name, 3);
        write(name, 1000, "compression.type", codec, "batch.size", 2000);
        try (var consumer = consumer(name, "implicit")) {
            check(numbers(1000), values(poll(consumer, 1000)));
            commit(consumer);
        }
        try (var consumer = consumer(name, "implicit")) {
            write(name, 1);
            check(Set.of("0"), values(poll(consumer, 1)));
        }
    }

    static void explicit(String name) throws Exception {
        create(name, 1);
        write(name, 3);
        try (var consumer = consumer(name, "explicit")) {
            for (var record : poll(consumer, 3)) {
                check((short) 1, record.deliveryCount().get());
                consumer.acknowledge(record, List.of(AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
                    .get((int) record.offset()));
            }
            commit(consumer);
            var again = poll(consumer, 1);
            check(Set.of("1"), values(again));
            check((short) 2, again.get(0).deliveryCount().get());
            consumer.acknowledge(again.get(0));
            commit(consumer);
            check(0, consumer.poll(Duration.ofMillis(500)).count());
        }
    }

    static void renew(String name) throws Exception {
        create(name, 1);
        write(name, 1);
        try (var consumer = consumer(name, "explicit")) {
            var record = poll(consumer, 1).get(0);
            for (int i = 0; i < 3; i++) {
                consumer.acknowledge(record, AcknowledgeType.RENEW);
                commit(consumer);
                consumer.poll(Duration.ofMillis(100)).forEach(same -> check(0L, same.offset()));
            }
            consumer.acknowledge(record, AcknowledgeType.ACCEPT);
            commit(consumer);
        }
    }

    // One record at a time out of one batch.
    static void strict(String name) throws Exception {
        create(name, 1);
        write(name, 20, "linger.ms", 200);
        try (var consumer = consumer(name, "implicit", "max.poll.records", 1, "share.acquire.mode", "record_limit")) {
            for (int i = 0; i < 20; i++) {
                var records = poll(consumer, 1);
                check(1, records.size());
                check((long) i, records.get(0).offset());
            }
        }
    }

    static void twoMembers(String name) throws Exception {
        create(name, 1);
        var seen = new ConcurrentHashMap<String, Integer>();
        var threads = new ArrayList<Thread>();
        for (int i = 0; i < 2; i++) {
            var thread = new Thread(() -> {
                try (var consumer = consumer(name, "implicit", "max.poll.records", 10)) {
                    while (seen.size() < 500) {
                        consumer.poll(Duration.ofMillis(100)).forEach(record -> seen.merge(record.value(), 1, Integer::sum));
                        consumer.commitSync();  // before the last one is closed
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        write(name, 500, "batch.size", 200);
        for (var thread : threads) thread.join(60_000);
        check(numbers(500), seen.keySet());
        check(Set.of(1), new HashSet<>(seen.values()));
    }

    static void readCommitted(String name) throws Exception {
        create(name, 1, "share.isolation.level", "read_committed");
        try (var producer = producer("transactional.id", name)) {
            producer.initTransactions();
            for (String value : List.of("kept", "dropped", "kept too")) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(name, value));
                if (value.equals("dropped")) {
                    producer.flush();
                    producer.abortTransaction();
                } else producer.commitTransaction();
            }
            try (var consumer = consumer(name, "implicit")) {
                check(Set.of("kept", "kept too"), values(poll(consumer, 2)));
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(name, "open"));
                producer.flush();
                check(0, consumer.poll(Duration.ofMillis(500)).count());
                producer.commitTransaction();
                check(Set.of("open"), values(poll(consumer, 1)));
            }
        }
    }

    static void described(String name) throws Exception {
        create(name, 2);
        try (var consumer = consumer(name, "implicit")) {
            write(name, 1);
            poll(consumer, 1);
            var group = admin.describeShareGroups(List.of(name)).describedGroups().get(name).get();
            check(GroupState.STABLE, group.groupState());
            check(1, group.members().size());
            check(2, group.members().iterator().next().assignment().topicPartitions().size());
            var types = admin.listGroups().all().get().stream()
                .filter(listing -> listing.groupId().equals(name)).map(listing -> listing.type().get()).toList();
            check(List.of(GroupType.SHARE), types);
        }
    }

    static void offsets(String name) throws Exception {
        create(name, 1);
        write(name, 10);
        try (var consumer = consumer(name, "implicit")) {
            poll(consumer, 10);
            commit(consumer);
        }
        var partition = new TopicPartition(name, 0);
        var spec = Map.of(name, new ListShareGroupOffsetsSpec());
        var offset = admin.listShareGroupOffsets(spec).partitionsToOffsetInfo(name).get().get(partition);
        check(10L, offset.startOffset());
        admin.alterShareGroupOffsets(name, Map.of(partition, 7L)).all().get();
        try (var consumer = consumer(name, "implicit")) {
            check(Set.of("7", "8", "9"), values(poll(consumer, 3)));
        }
        admin.deleteShareGroups(List.of(name)).all().get();
    }

    static void worker(String group, String topic) throws Exception {
        Map<String, Object> settings = settings("max.poll.records", 5);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (System.in.available() == 0) {
                var values = new ArrayList<String>();
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    consumer.acknowledge(record);
                    values.add(record.value());
                }
                boolean counts = consumer.commitSync(Duration.ofSeconds(30)).values().stream().allMatch(Optional::isEmpty);
                values.forEach(value -> System.out.println((counts ? "" : "?") + value));
                System.out.flush();
            }
        }
    }
}
