// What Kafka's own administration client asks about the cluster: run by test_java.py as
//   java -cp JARS ClusterAdmin.java SERVERS PREFIX
// Prints the name of each scenario that went well.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.internals.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class ClusterAdmin {
    static String servers;
    static Admin admin;

    interface Action { void run() throws Exception; }
    interface Scenario { void run(String name) throws Exception; }

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        try (Admin client = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin = client;
            scenario(arguments[1], "config-resources", ClusterAdmin::configResources);
            scenario(arguments[1], "metadata-quorum", ClusterAdmin::metadataQuorum);
            scenario(arguments[1], "features", ClusterAdmin::features);
            scenario(arguments[1], "no-streams-groups", ClusterAdmin::noStreamsGroups);
            scenario(arguments[1], "no-streams-members", ClusterAdmin::noStreamsMembers);
            scenario(arguments[1], "no-offsets-topic", ClusterAdmin::noOffsetsTopic);
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

    static Collection<ConfigResource> listed(ConfigResource.Type... types) throws Exception {
        return admin.listConfigResources(Set.of(types), new ListConfigResourcesOptions()).all().get();
    }

    static void configResources(String name) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
        var group = new ConfigResource(ConfigResource.Type.GROUP, name);
        check(false, listed(ConfigResource.Type.GROUP).contains(group));
        var change = new AlterConfigOp(new ConfigEntry("share.isolation.level", "read_committed"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(group, List.of(change))).all().get();
        check(true, listed(ConfigResource.Type.GROUP).contains(group));
        var all = listed();
        check(true, all.contains(group) && all.contains(new ConfigResource(ConfigResource.Type.TOPIC, name)));
        check(all.size(), admin.describeConfigs(all).all().get().size());
    }

    static void metadataQuorum(String name) throws Exception {
        var quorum = admin.describeMetadataQuorum().quorumInfo().get();
        var node = admin.describeCluster().nodes().get().iterator().next();
        check(node.id(), quorum.leaderId());
        check(List.of(node.id()), quorum.voters().stream().map(QuorumInfo.ReplicaState::replicaId).toList());
        check(quorum.highWatermark(), quorum.voters().get(0).logEndOffset());
        // tests/compat may run against several nodes.
        var nodes = Integer.parseInt(System.getenv().getOrDefault("BROKER_NODES", "1"));
        check(nodes - 1, quorum.observers().size());
        check(node.port(), quorum.nodes().get(node.id()).endpoints().get(0).port());
    }

    static void features(String name) throws Exception {
        var metadata = admin.describeFeatures().featureMetadata().get();
        var finalized = metadata.finalizedFeatures();
        check(Set.of("group.version", "share.version", "transaction.version"), finalized.keySet());
        check((short) 2, finalized.get("transaction.version").maxVersionLevel());
        for (String feature : finalized.keySet())
            check(true, metadata.supportedFeatures().get(feature).maxVersion() >= finalized.get(feature).maxVersionLevel());
        var options = new UpdateFeaturesOptions().validateOnly(true);
        var down = new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.SAFE_DOWNGRADE);
        admin.updateFeatures(Map.of("transaction.version", down), options).all().get();
        var streams = new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE);
        refused(InvalidUpdateVersionException.class, () ->
            admin.updateFeatures(Map.of("streams.version", streams), options).all().get());
    }

    static void noStreamsGroups(String name) throws Exception {
        check(List.of(), List.copyOf(admin.listGroups(ListGroupsOptions.forStreamsGroups()).all().get()));
        refused(UnsupportedVersionException.class, () -> admin.describeStreamsGroups(List.of(name)).all().get());
        refused(GroupIdNotFoundException.class, () -> admin.deleteStreamsGroups(List.of(name)).all().get());
    }

    /** What Kafka Streams is told where it is set to group.protocol=streams: this is the consumer inside it. */
    static void noStreamsMembers(String name) throws Exception {
        var settings = Map.<String, Object>of("bootstrap.servers", servers, "group.id", name, "group.protocol", "consumer",
            "key.deserializer", StringDeserializer.class, "value.deserializer", StringDeserializer.class);
        var topology = Map.of("0", new StreamsRebalanceData.Subtopology(Set.of(name), Set.of(), Map.of(), Map.of(), Set.of()));
        var data = new StreamsRebalanceData(UUID.randomUUID(), Optional.empty(), Optional.empty(), topology, Map.of());
        var deserializer = new StringDeserializer();
        try (var consumer = new AsyncKafkaConsumer<>(new ConsumerConfig(settings), deserializer, deserializer, Optional.of(data))) {
            consumer.subscribe(Set.of(name), new StreamsRebalanceListener() {
                public void onTasksRevoked(Set<StreamsRebalanceData.TaskId> tasks) { }
                public void onTasksAssigned(StreamsRebalanceData.Assignment assignment) { }
                public void onAllTasksLost() { }
            });
            for (int tries = 0; tries < 300; tries++) consumer.poll(Duration.ofMillis(100));
        } catch (UnsupportedVersionException e) {
            check(true, e.getMessage().contains("does not support the STREAMS group protocol"));
            return;
        }
        throw new AssertionError("a member of a streams group was not refused");
    }

    static void noOffsetsTopic(String name) throws Exception {
        var settings = Map.<String, Object>of("bootstrap.servers", servers, "allow.auto.create.topics", true);
        var deserializer = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(settings, deserializer, deserializer)) {
            check(List.of(), consumer.partitionsFor("__consumer_offsets", Duration.ofSeconds(10)));
        }
        refused(UnknownTopicOrPartitionException.class, () ->
            admin.describeTopics(List.of("__consumer_offsets")).allTopicNames().get());
    }
}
