// Kafka's own administration of share groups against the broker: run by test_java.py as
//   java -cp JARS ShareAdmin.java SERVERS PREFIX
// Prints the name of each scenario that went well.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class ShareAdmin {
    static String servers;
    static Admin admin;

    interface Action { void run() throws Exception; }
    interface Scenario { void run(String name) throws Exception; }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        try (Admin client = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin = client;
            scenario(arguments[1], "listed-by-type", ShareAdmin::listedByType);
            scenario(arguments[1], "shared-partition", ShareAdmin::sharedPartition);
            scenario(arguments[1], "lag", ShareAdmin::lag);
            scenario(arguments[1], "altered-before-it-exists", ShareAdmin::altered);
            scenario(arguments[1], "offsets-deleted", ShareAdmin::offsetsDeleted);
            scenario(arguments[1], "members-in-the-way", ShareAdmin::membersInTheWay);
            scenario(arguments[1], "absent", ShareAdmin::absent);
            scenario(arguments[1], "settings", ShareAdmin::settings);
        }
    }

    static void scenario(String prefix, String name, Scenario scenario) throws Exception {
        scenario.run(prefix + "-" + name);
        System.out.println(name);
    }

    static void check(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) throw new AssertionError("expected " + expected + ", got " + actual);
    }

    static void refused(Class<?> error, Action action) throws Exception {
        try {
            action.run();
        } catch (ExecutionException e) {
            check(error, e.getCause().getClass());
            return;
        }
        throw new AssertionError("expected " + error);
    }

    static void create(String name, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, Optional.of(partitions), Optional.empty()))).all().get();
        set(name, "share.auto.offset.reset", "earliest");
    }

    static void set(String group, String setting, String value) throws Exception {
        var change = new AlterConfigOp(new ConfigEntry(setting, value), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), List.of(change)))
            .all().get();
    }

    static void write(String topic, int records) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int i = 0; i < records; i++) producer.send(new ProducerRecord<>(topic, 0, null, "" + i)).get();
        }
    }

    static KafkaShareConsumer<String, String> consumer(String group) {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "group.id", group);
        var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(group));
        return consumer;
    }

    static void poll(KafkaShareConsumer<String, String> consumer, int records) {
        int found = 0;
        for (int tries = 0; found < records; tries++) {
            if (tries == 600) throw new AssertionError(found + " records came");
            found += consumer.poll(Duration.ofMillis(100)).count();
        }
        consumer.commitSync();
    }

    /** A group that has read everything and has no members. */
    static void read(String name, int records) {
        try (var consumer = consumer(name)) {
            poll(consumer, records);
        }
    }

    static Map<TopicPartition, SharePartitionOffsetInfo> offsets(String group) throws Exception {
        return admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec())).partitionsToOffsetInfo(group).get();
    }

    static void listedByType(String name) throws Exception {
        create(name, 1);
        write(name, 1);
        read(name, 1);
        var options = new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE)).inGroupStates(Set.of(GroupState.EMPTY));
        var found = admin.listGroups(options).all().get();
        check(Set.of(Optional.of(GroupType.SHARE)), found.stream().map(GroupListing::type).collect(Collectors.toSet()));
        check(true, found.stream().anyMatch(each -> each.groupId().equals(name)));
    }

    static void sharedPartition(String name) throws Exception {
        create(name, 1);
        write(name, 2);
        try (var first = consumer(name); var second = consumer(name)) {
            poll(first, 2);
            ShareGroupDescription group = null;
            for (int tries = 0; tries < 600; tries++) {
                second.poll(Duration.ofMillis(100));
                group = admin.describeShareGroups(List.of(name)).describedGroups().get(name).get();
                if (group.members().size() == 2) break;
            }
            check(2, group.members().size());
            for (var member : group.members())
                check(Set.of(new TopicPartition(name, 0)), member.assignment().topicPartitions());
        }
    }

    static void lag(String name) throws Exception {
        create(name, 2);
        write(name, 3);
        read(name, 3);
        write(name, 2);
        var info = offsets(name).get(new TopicPartition(name, 0));
        check(List.of(3L, Optional.of(2L)), List.of(info.startOffset(), info.lag()));
        check(0L, offsets(name).get(new TopicPartition(name, 1)).startOffset());
    }

    static void altered(String name) throws Exception {
        create(name, 1);
        write(name, 5);
        var partition = new TopicPartition(name, 0);
        admin.alterShareGroupOffsets(name, Map.of(partition, 4L)).all().get();
        check(4L, offsets(name).get(partition).startOffset());
        read(name, 1);
        refused(UnknownTopicOrPartitionException.class,
            () -> admin.alterShareGroupOffsets(name, Map.of(new TopicPartition(name, 7), 0L)).all().get());
    }

    static void offsetsDeleted(String name) throws Exception {
        create(name, 1);
        write(name, 3);
        read(name, 3);
        admin.deleteShareGroupOffsets(name, Set.of(name)).all().get();
        check(Map.of(), offsets(name));
        refused(UnknownTopicOrPartitionException.class, () -> admin.deleteShareGroupOffsets(name, Set.of(name)).all().get());
        read(name, 3);
        admin.deleteShareGroups(List.of(name)).all().get();
        refused(GroupIdNotFoundException.class, () -> admin.describeShareGroups(List.of(name)).all().get());
    }

    static void membersInTheWay(String name) throws Exception {
        create(name, 1);
        write(name, 1);
        try (var consumer = consumer(name)) {
            poll(consumer, 1);
            var partition = new TopicPartition(name, 0);
            refused(GroupNotEmptyException.class, () -> admin.alterShareGroupOffsets(name, Map.of(partition, 0L)).all().get());
            refused(GroupNotEmptyException.class, () -> admin.deleteShareGroupOffsets(name, Set.of(name)).all().get());
            refused(GroupNotEmptyException.class, () -> admin.deleteShareGroups(List.of(name)).all().get());
        }
    }

    static void absent(String name) throws Exception {
        refused(GroupIdNotFoundException.class, () -> admin.describeShareGroups(List.of(name)).all().get());
        refused(GroupIdNotFoundException.class, () -> admin.deleteShareGroups(List.of(name)).all().get());
        check(Map.of(), offsets(name));
    }

    static void settings(String name) throws Exception {
        set(name, "share.auto.offset.reset", "by_duration:PT1H");
        var resource = new ConfigResource(ConfigResource.Type.GROUP, name);
        var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        check("by_duration:PT1H", config.get("share.auto.offset.reset").value());
        check("5", config.get("share.delivery.count.limit").value());
        refused(InvalidConfigurationException.class, () -> set(name, "share.delivery.count.limit", "11"));
        refused(InvalidConfigurationException.class, () -> set(name, "share.auto.offset.reset", "soon"));
    }
}
