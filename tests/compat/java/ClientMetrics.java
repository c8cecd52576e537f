// Kafka's own clients push their metrics: run by test_client_metrics.py as
//   java -cp JARS ClientMetrics.java SERVERS CLIENT_ID
// Prints the client instance ids of a producer and of a consumer.

import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

public class ClientMetrics {
    static final ConfigResource SUBSCRIPTION = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "java");

    static void check(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) throw new AssertionError("expected " + expected + ", got " + actual);
    }

    static void alter(Admin admin, AlterConfigOp.OpType type, Map<String, String> settings) throws Exception {
        var changes = settings.entrySet().stream()
            .map(each -> new AlterConfigOp(new ConfigEntry(each.getKey(), each.getValue()), type)).toList();
        admin.incrementalAlterConfigs(Map.of(SUBSCRIPTION, (Collection<AlterConfigOp>) changes)).all().get();
    }

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0], id = arguments[1];
        Map<String, String> settings = Map.of("metrics", "*", "interval.ms", "300",
            "match", "client_software_name=apache-kafka-java,client_id=" + id + ".*");
        try (var admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            alter(admin, AlterConfigOp.OpType.SET, settings);
            var listed = admin.listConfigResources(Set.of(ConfigResource.Type.CLIENT_METRICS), new ListConfigResourcesOptions());
            check(List.of(SUBSCRIPTION), List.copyOf(listed.all().get()));
            var shown = admin.describeConfigs(List.of(SUBSCRIPTION)).all().get().get(SUBSCRIPTION);
            for (var each : settings.entrySet()) {
                check(each.getValue(), shown.get(each.getKey()).value());
                check(ConfigEntry.ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG, shown.get(each.getKey()).source());
            }
            admin.createTopics(List.of(new NewTopic(id, 1, (short) 1))).all().get();
            var topic = List.of(id);
            try (var producer = new KafkaProducer<>(Map.of("bootstrap.servers", servers, "client.id", id + "-producer"),
                    new StringSerializer(), new StringSerializer());
                 var consumer = new KafkaConsumer<>(Map.of("bootstrap.servers", servers, "client.id", id + "-consumer",
                    "group.id", id, "auto.offset.reset", "earliest"), new StringDeserializer(), new StringDeserializer())) {
                consumer.subscribe(topic);
                int found = 0;
                for (int tries = 0; found < 20; tries++) {
                    if (tries == 600) throw new AssertionError(found + " records came");
                    if (tries < 20) producer.send(new ProducerRecord<>(id, "" + tries)).get();
                    found += consumer.poll(Duration.ofMillis(100)).count();
                }
                System.out.println(producer.clientInstanceId(Duration.ofSeconds(30)));
                System.out.println(consumer.clientInstanceId(Duration.ofSeconds(30)));
            }
            Map<String, String> nothing = new HashMap<>();
            for (String name : settings.keySet()) nothing.put(name, "");
            alter(admin, AlterConfigOp.OpType.DELETE, nothing);
            check(List.of(), List.copyOf(admin.listConfigResources(Set.of(ConfigResource.Type.CLIENT_METRICS),
                new ListConfigResourcesOptions()).all().get()));
        }
    }
}
