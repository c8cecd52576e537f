// Java's consumers with group.protocol=consumer (KIP-848): run by test_groups_consumer_protocol.py as
// `java -cp JARS ConsumerGroups.java SERVERS PREFIX`. Prints the name of each scenario that went well; the first that does not
// ends it with a stack trace.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.regex.Pattern;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class ConsumerGroups {
    static final int PARTITIONS = 6;
    static String servers;
    static String prefix;
    static Admin admin;

    interface Scenario { void run(String name) throws Exception; }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        prefix = arguments[1];
        try (Admin client = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin = client;
            scenario("rebalance", ConsumerGroups::rebalance);
            scenario("static", ConsumerGroups::staticMember);
            scenario("regex", ConsumerGroups::regex);
            scenario("admin", ConsumerGroups::administration);
            scenario("upgrade", ConsumerGroups::upgrade);
            scenario("settings", ConsumerGroups::groupSettings);
        }
    }

    static void scenario(String name, Scenario scenario) throws Exception {
        scenario.run(prefix + "-" + name);
        System.out.println(name);
    }

    static void check(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) throw new AssertionError("expected " + expected + ", got " + actual);
    }

    static void create(String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, Optional.of(PARTITIONS), Optional.empty()))).all().get();
    }

    static KafkaConsumer<String, String> consumer(String group, String protocol, Object... more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "group.id", group));
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("metadata.max.age.ms", 300);
        if (protocol.equals("classic")) {
            settings.put("heartbeat.interval.ms", 100);
            settings.put("session.timeout.ms", 60_000);
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        }
        for (int i = 0; i < more.length; i += 2) settings.put((String) more[i], more[i + 1]);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    // Until every partition of the topics has one owner and the consumers have equally many. While members still give
    // partitions up, one after the other, each partition can have an owner already and the counts still differ: 3, 2, 1.
    static void settle(List<? extends Consumer<String, String>> members, int partitions) {
        for (int tries = 0; tries < 3000; tries++) {
            for (var member : members) member.poll(Duration.ofMillis(20));
            var owned = members.stream().flatMap(member -> member.assignment().stream()).toList();
            if (owned.size() == partitions && new HashSet<>(owned).size() == partitions
                && members.stream().allMatch(member -> member.assignment().size() * members.size() == partitions)) return;
        }
        throw new AssertionError("the group does not settle: " + members.stream().map(Consumer::assignment).toList());
    }

    static void rebalance(String topic) throws Exception {
        create(topic);
        var members = new ArrayList<KafkaConsumer<String, String>>();
        for (int i = 0; i < 3; i++) {
            var member = consumer(topic, "consumer", "group.remote.assignor", i == 0 ? "range" : "uniform");
            member.subscribe(List.of(topic));
            members.add(member);
            settle(members, PARTITIONS);
        }
        check(List.of(2, 2, 2), members.stream().map(one -> one.assignment().size()).toList());
        var position = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(0, "here"));
        var owner = members.stream().filter(one -> one.assignment().contains(new TopicPartition(topic, 0))).findFirst().get();
        owner.commitSync(position);
        check(position.values().iterator().next(), owner.committed(position.keySet()).get(new TopicPartition(topic, 0)));
        members.remove(0).close();
        settle(members, PARTITIONS);
        for (var member : members) member.close();
    }

    static void staticMember(String topic) throws Exception {
        create(topic);
        var one = consumer(topic, "consumer", "group.instance.id", "one");
        var two = consumer(topic, "consumer", "group.instance.id", "two");
        for (var member : List.of(one, two)) member.subscribe(List.of(topic));
        settle(List.of(one, two), PARTITIONS);
        var had = Set.copyOf(one.assignment());
        one.close();
        one = consumer(topic, "consumer", "group.instance.id", "one");
        one.subscribe(List.of(topic));
        settle(List.of(one, two), PARTITIONS);
        check(had, one.assignment());
        one.close();
        two.close();
    }

    static void regex(String topic) throws Exception {
        create(topic + "-a");
        var members = new ArrayList<KafkaConsumer<String, String>>();
        members.add(consumer(topic, "consumer"));
        members.get(0).subscribe(new SubscriptionPattern(topic + "-.*"));
        settle(members, PARTITIONS);
        create(topic + "-b");
        settle(members, 2 * PARTITIONS);
        members.add(consumer(topic, "consumer"));
        members.get(1).subscribe(Pattern.compile(topic + "-.*"));  // matched by the client
        settle(members, 2 * PARTITIONS);
        for (var member : members) member.close();
        var bad = consumer(topic + "-bad", "consumer");
        bad.subscribe(new SubscriptionPattern("a("));
        try {
            for (int tries = 0; tries < 600; tries++) bad.poll(Duration.ofMillis(100));
            throw new AssertionError("the expression was taken");
        } catch (InvalidRegularExpression expected) {
        } finally {
            bad.close();
        }
    }

    static void administration(String topic) throws Exception {
        create(topic);
        var member = consumer(topic, "consumer", "client.id", "reader");
        member.subscribe(List.of(topic));
        settle(List.of(member), PARTITIONS);
        member.commitSync(Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(0)));
        var listed = admin.listGroups(new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))).all().get();
        check(1L, listed.stream().filter(one -> one.groupId().equals(topic)).count());
        var group = admin.describeConsumerGroups(List.of(topic)).all().get().get(topic);
        check(GroupType.CONSUMER, group.type());
        check(GroupState.STABLE, group.groupState());
        var described = group.members().iterator().next();
        check("reader", described.clientId());
        check(PARTITIONS, described.assignment().topicPartitions().size());
        check(PARTITIONS, described.targetAssignment().get().topicPartitions().size());
        try {
            admin.deleteConsumerGroups(List.of(topic)).all().get();
            throw new AssertionError("a group with members was deleted");
        } catch (ExecutionException error) {
            check(GroupNotEmptyException.class, error.getCause().getClass());
        }
        var read = Set.of(new TopicPartition(topic, 0));
        try {
            admin.deleteConsumerGroupOffsets(topic, read).all().get();
            throw new AssertionError("offsets that are in use were deleted");
        } catch (ExecutionException error) {
            check(GroupSubscribedToTopicException.class, error.getCause().getClass());
        }
        member.close();
        admin.alterConsumerGroupOffsets(topic, Map.of(new TopicPartition(topic, 1), new OffsetAndMetadata(3))).all().get();
        check(2, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().size());
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        var left = admin.listGroups().all().get();
        check(0L, left.stream().filter(one -> one.groupId().equals(topic)).count());
    }

    // One member after the other goes from the classic protocol to the other and back.
    static void upgrade(String topic) throws Exception {
        create(topic);
        var members = new ArrayList<KafkaConsumer<String, String>>();
        for (int i = 0; i < 2; i++) {
            members.add(consumer(topic, "classic"));
            members.get(i).subscribe(List.of(topic));
        }
        settle(members, PARTITIONS);
        for (String protocol : List.of("consumer", "classic")) {
            for (int i = 0; i < 2; i++) {
                members.remove(0).close();
                members.add(consumer(topic, protocol));
                members.get(1).subscribe(List.of(topic));
                settle(members, PARTITIONS);
            }
            check(protocol, admin.describeConsumerGroups(List.of(topic)).all().get().get(topic).type().toString().toLowerCase());
        }
        for (var member : members) member.close();
    }

    static void groupSettings(String group) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        var change = new AlterConfigOp(new ConfigEntry("consumer.session.timeout.ms", "2000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        var config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        check("2000", config.get("consumer.session.timeout.ms").value());
        check("100", config.get("consumer.heartbeat.interval.ms").value());
    }
}
