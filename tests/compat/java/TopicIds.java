// Kafka's own Java clients, and a topic that is deleted and made again under its old name: run by test_topic_ids.py as
// `java -cp JARS TopicIds.java SERVERS PREFIX`. Prints the name of each scenario that went well; the first that does not ends it
// with a stack trace.

import java.time.Duration;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class TopicIds {
    static String servers;
    static Admin admin;

    interface Scenario { void run(String topic) throws Exception; }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        try (Admin client = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin = client;
            scenario("admin", arguments[1], TopicIds::admin);
            scenario("consumer", arguments[1], TopicIds::consumer);
            scenario("producer", arguments[1], TopicIds::producer);
            scenario("commits", arguments[1], TopicIds::commits);
        }
    }

    static void scenario(String name, String prefix, Scenario scenario) throws Exception {
        scenario.run(prefix + "-" + name);
        System.out.println(name);
    }

    static void check(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) throw new AssertionError("expected " + expected + ", got " + actual);
    }

    static Uuid create(String topic) throws Exception {
        return admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).topicId(topic).get();
    }

    static Uuid makeAgain(String topic) throws Exception {
        admin.deleteTopics(List.of(topic)).all().get();
        return create(topic);
    }

    // Clients that ask for metadata only when an answer makes them.
    static Map<String, Object> settings(Object... more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "metadata.max.age.ms", 600_000));
        for (int i = 0; i < more.length; i += 2) settings.put((String) more[i], more[i + 1]);
        return settings;
    }

    static KafkaProducer<String, String> newProducer() {
        return new KafkaProducer<>(settings("linger.ms", 0), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> newConsumer(String group) {
        return new KafkaConsumer<>(
            settings("group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", false),
            new StringDeserializer(), new StringDeserializer());
    }

    static void write(String topic, String... values) throws Exception {
        try (var producer = newProducer()) {
            for (String value : values) producer.send(new ProducerRecord<>(topic, value)).get();
        }
    }

    static List<String> read(Consumer<String, String> consumer, int count) {
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + 60_000_000_000L;
        while (found.size() < count && System.nanoTime() < end)
            for (var record : consumer.poll(Duration.ofMillis(200))) found.add(record.value());
        return found;
    }

    static void admin(String topic) throws Exception {
        Uuid first = create(topic), second = makeAgain(topic);
        if (first.equals(second)) throw new AssertionError("the new topic has the id of the old one");
        var found = admin.describeTopics(TopicCollection.ofTopicIds(List.of(second))).allTopicIds().get().get(second);
        check(topic, found.name());
        check(second, found.topicId());
        check(second, admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId());
        check(Map.of(topic, second), admin.listTopics().listings().get().stream()
            .filter(each -> each.name().equals(topic)).collect(Collectors.toMap(TopicListing::name, TopicListing::topicId)));
        refused(() -> admin.describeTopics(TopicCollection.ofTopicIds(List.of(first))).allTopicIds().get());
        refused(() -> admin.deleteTopics(TopicCollection.ofTopicIds(List.of(first))).all().get());
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(second))).all().get();
        refused(() -> admin.describeTopics(TopicCollection.ofTopicIds(List.of(second))).allTopicIds().get());
    }

    interface Call { void run() throws Exception; }

    static void refused(Call call) throws Exception {
        try {
            call.run();
        } catch (java.util.concurrent.ExecutionException error) {
            check(UnknownTopicIdException.class, error.getCause().getClass());
            return;
        }
        throw new AssertionError("a topic was found by an id that is gone");
    }

    // It is at offset 3 of the old topic; the new one begins again and ends before.
    static void consumer(String topic) throws Exception {
        create(topic);
        write(topic, "a", "b", "c");
        try (var consumer = newConsumer("unused-" + topic)) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            check(List.of("a", "b", "c"), read(consumer, 3));
            makeAgain(topic);
            write(topic, "d", "e");
            check(List.of("d", "e"), read(consumer, 2));
        }
    }

    // It numbers its batches: what it sends after the topic was made again is not the next batch of the new topic.
    static void producer(String topic) throws Exception {
        create(topic);
        try (var producer = newProducer()) {
            for (String value : List.of("a", "b", "c")) producer.send(new ProducerRecord<>(topic, value)).get();
            makeAgain(topic);
            for (String value : List.of("d", "e")) producer.send(new ProducerRecord<>(topic, value)).get();
        }
        try (var consumer = newConsumer("unused-" + topic)) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            check(List.of("d", "e"), read(consumer, 2));
        }
    }

    // What a group has committed for the old topic says nothing of the new one.
    static void commits(String topic) throws Exception {
        create(topic);
        write(topic, "a", "b", "c");
        var partition = new TopicPartition(topic, 0);
        try (var consumer = newConsumer(topic)) {
            consumer.subscribe(List.of(topic));
            check(List.of("a", "b", "c"), read(consumer, 3));
            consumer.commitSync();
            check(3L, consumer.committed(Set.of(partition)).get(partition).offset());
        }
        makeAgain(topic);
        write(topic, "d", "e", "f", "g");
        try (var consumer = newConsumer(topic)) {
            consumer.subscribe(List.of(topic));
            check(List.of("d", "e", "f", "g"), read(consumer, 4));
            consumer.commitSync();
            check(4L, consumer.committed(Set.of(partition)).get(partition).offset());
        }
    }
}
