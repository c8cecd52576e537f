package org.apache.flink.runtime.io.network.partition.consumer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.Serializable;
import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.function.Consumer;
import java.util.zip.CRC32;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.core.io.IOReadableWritable;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.metrics.groups.UnregisteredMetricsGroup;
import org.apache.flink.runtime.checkpoint.channel.ChannelStateWriter;
import org.apache.flink.runtime.checkpoint.channel.InputChannelInfo;
import org.apache.flink.runtime.clusterframework.types.ResourceID;
import org.apache.flink.runtime.deployment.InputGateDeploymentDescriptor;
import org.apache.flink.runtime.deployment.TaskDeploymentDescriptor;
import org.apache.flink.runtime.event.AbstractEvent;
import org.apache.flink.runtime.execution.ExecutionState;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.io.network.NettyShuffleEnvironment;
import org.apache.flink.runtime.io.network.NettyShuffleServiceFactory;
import org.apache.flink.runtime.io.network.TaskEventPublisher;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.EndOfData;
import org.apache.flink.runtime.io.network.api.EndOfPartitionEvent;
import org.apache.flink.runtime.io.network.api.serialization.RecordDeserializer;
import org.apache.flink.runtime.io.network.api.serialization.RecordDeserializer.DeserializationResult;
import org.apache.flink.runtime.io.network.api.serialization.SpillingAdaptiveSpanningRecordDeserializer;
import org.apache.flink.runtime.io.network.partition.PartitionProducerStateProvider;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.ResultPartitionType;
import org.apache.flink.runtime.iterative.event.TerminationEvent;
import org.apache.flink.runtime.jobgraph.IntermediateDataSetID;
import org.apache.flink.runtime.jobgraph.IntermediateResultPartitionID;
import org.apache.flink.runtime.shuffle.NettyShuffleDescriptor;
import org.apache.flink.runtime.shuffle.ShuffleDescriptor;
import org.apache.flink.runtime.shuffle.ShuffleEnvironmentContext;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBuf;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBufUtil;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;
import org.apache.flink.types.Either;
import org.apache.flink.util.SerializedValue;
import org.apache.flink.util.concurrent.ScheduledExecutorServiceAdapter;

/**
 * Flink's network stack as its tasks use it (shuffle environment, input gates, Netty client), reading from whatever
 * server the test has.
 *
 * <p>A line on standard input is a command, its words separated by tabs; a line of JSON answers it.
 *
 * <ul>
 *   <li>environment KEY=VALUE...: a new environment with this configuration, instead of the one before; it has 16 MiB of
 *       buffers, or what the system property "network.memory" says (MiB)
 *   <li>gate TYPE FIRST LAST PORT PARTITION...: a gate on these partitions (hex), on these subpartitions of each
 *   <li>read GATE MOST DELAY: begin to read, at most so many buffers, with so many microseconds after each; with a DELAY of
 *       -1 nobody looks into the buffers
 *   <li>result GATE: wait until that has ended, and tell what came
 *   <li>buffers GATE: how many have been read so far
 *   <li>announce GATE SIZE; event GATE; close GATE: as the names of the gate's methods say
 *   <li>state: the connections that are open, and the buffers that nobody has
 * </ul>
 *
 * <p>A record is (int stream, int size, that many bytes). Of each channel and stream the number of records is told, and
 * the CRC-32 of their sizes and bytes in the order in which they came.
 */
public final class ReadPartitions {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ScheduledExecutorService EXECUTOR =
            Executors.newScheduledThreadPool(
                    2,
                    runnable -> {
                        Thread thread = new Thread(runnable, "executor");
                        thread.setDaemon(true);
                        return thread;
                    });

    private final List<Gate> gates = new ArrayList<>();
    private NettyShuffleEnvironment environment;
    private int buffers;

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // whatever Flink prints, it is no answer
        ReadPartitions reader = new ReadPartitions();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                answer.put("ok", reader.answer(line.split("\t")));
            } catch (Throwable error) {
                error.printStackTrace();
                answer.put("error", chain(error));
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        System.exit(0);
    }

    private Object answer(String[] words) throws Exception {
        if (words[0].equals("environment")) {
            return newEnvironment(Arrays.asList(words).subList(1, words.length));
        } else if (words[0].equals("gate")) {
            gates.add(new Gate(newGate(words)));
            return gates.size() - 1;
        } else if (words[0].equals("state")) {
            return state();
        }
        Gate gate = gates.get(Integer.parseInt(words[1]));
        switch (words[0]) {
            case "read":
                gate.most = Long.parseLong(words[2]);
                gate.delay = Long.parseLong(words[3]);
                gate.start();
                return true;
            case "result":
                gate.join();
                return gate.result();
            case "buffers":
                return gate.buffers;
            case "announce":
                gate.input.announceBufferSize(Integer.parseInt(words[2]));
                return true;
            case "event":
                gate.input.sendTaskEvent(new TerminationEvent());
                return true;
            case "close":
                gate.input.close();
                return true;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private Object newEnvironment(List<String> settings) throws Exception {
        if (environment != null) {
            environment.close();
        }
        gates.clear();
        Configuration configuration = new Configuration();
        for (String setting : settings) {
            String[] pair = setting.split("=", 2);
            configuration.setString(pair[0], pair[1]);
        }
        List<Object> arguments = new ArrayList<>(
                Arrays.asList(
                        configuration,
                        new ResourceID("reader"),
                        MemorySize.ofMebiBytes(Long.getLong("network.memory", 16)),
                        false,
                        InetAddress.getLoopbackAddress()));
        Constructor<?> constructor = ShuffleEnvironmentContext.class.getConstructors()[0];
        TaskEventPublisher nobody = (partition, event) -> false;
        for (Class<?> type : constructor.getParameterTypes()) {
            if (type == int.class) {
                arguments.add(1); // slots
            } else if (type == String[].class) {
                arguments.add(new String[] {System.getProperty("java.io.tmpdir")});
            } else if (type == TaskEventPublisher.class) {
                arguments.add(nobody);
            } else if (type.getSimpleName().equals("MetricGroup")) {
                arguments.add(new UnregisteredMetricsGroup());
            } else if (type.getSimpleName().equals("Executor")) {
                arguments.add(EXECUTOR);
            } else if (type.getSimpleName().equals("ScheduledExecutor")) { // from 1.18 on
                arguments.add(new ScheduledExecutorServiceAdapter(EXECUTOR));
            }
        }
        environment =
                new NettyShuffleServiceFactory()
                        .createShuffleEnvironment((ShuffleEnvironmentContext) constructor.newInstance(arguments.toArray()));
        environment.start();
        buffers = environment.getNetworkBufferPool().getNumberOfAvailableMemorySegments();
        return buffers;
    }

    private SingleInputGate newGate(String[] words) throws Exception {
        ResultPartitionType type = ResultPartitionType.valueOf(words[1]);
        int first = Integer.parseInt(words[2]);
        int last = Integer.parseInt(words[3]);
        InetSocketAddress address = new InetSocketAddress(InetAddress.getLoopbackAddress(), Integer.parseInt(words[4]));
        ShuffleDescriptor[] partitions = new ShuffleDescriptor[words.length - 5];
        for (int i = 0; i < partitions.length; i++) {
            ByteBuf bytes = Unpooled.wrappedBuffer(ByteBufUtil.decodeHexDump(words[i + 5]));
            partitions[i] =
                    new NettyShuffleDescriptor(
                            new ResourceID("broker"),
                            new NettyShuffleDescriptor.NetworkPartitionConnectionInfo(address, 0),
                            new ResultPartitionID(
                                    IntermediateResultPartitionID.fromByteBuf(bytes),
                                    ExecutionAttemptID.fromByteBuf(bytes)));
        }
        PartitionProducerStateProvider running = ReadPartitions::tellThatItRuns;
        List<SingleInputGate> made =
                environment.createInputGates(
                        environment.createShuffleIOOwnerContext(
                                "reader", ExecutionAttemptID.randomId(), new UnregisteredMetricsGroup()),
                        running,
                        Collections.singletonList(descriptor(type, first, last, partitions)));
        return made.get(0);
    }

    /** What the class takes has changed from release to release. */
    private static InputGateDeploymentDescriptor descriptor(
            ResultPartitionType type, int first, int last, ShuffleDescriptor[] partitions) throws Exception {
        IntermediateDataSetID dataSet = new IntermediateDataSetID();
        for (Constructor<?> constructor : InputGateDeploymentDescriptor.class.getConstructors()) {
            Class<?>[] types = constructor.getParameterTypes();
            if (!types[2].getSimpleName().endsWith("IndexRange")) {
                continue;
            }
            Constructor<?> rangeOf = types[2].getDeclaredConstructor(int.class, int.class);
            rangeOf.setAccessible(true);
            Object range = rangeOf.newInstance(first, last);
            Object descriptor;
            if (types.length == 4) { // 1.16
                descriptor = constructor.newInstance(dataSet, type, range, serialized(partitions));
            } else {
                String kind = "org.apache.flink.runtime.deployment.TaskDeploymentDescriptorFactory$ShuffleDescriptor";
                Class<?> indexed = Class.forName(kind + "AndIndex");
                Object all = Array.newInstance(indexed, partitions.length);
                for (int i = 0; i < partitions.length; i++) {
                    Array.set(all, i, indexed.getConstructors()[0].newInstance(partitions[i], i));
                }
                Object group = Class.forName(kind + "Group").getConstructors()[0].newInstance(all);
                List<Object> groups = Collections.singletonList(serialized((Serializable) group));
                descriptor = constructor.newInstance(dataSet, type, range, partitions.length, groups);
            }
            for (Method method : InputGateDeploymentDescriptor.class.getMethods()) {
                if (method.getName().equals("loadBigData") || method.getName().startsWith("tryLoad")) {
                    method.invoke(descriptor, new Object[method.getParameterCount()]); // nothing is in files
                }
            }
            return (InputGateDeploymentDescriptor) descriptor;
        }
        throw new IllegalStateException("no constructor of InputGateDeploymentDescriptor takes a range");
    }

    private static <T extends Serializable> Object serialized(T value) throws IOException {
        return new TaskDeploymentDescriptor.NonOffloaded<>(new SerializedValue<>(value));
    }

    /** What a task asks the JobMaster when a partition was not found: its producer runs, so it is to be asked for again. */
    private static void tellThatItRuns(
            IntermediateDataSetID dataSet,
            ResultPartitionID partition,
            Consumer<? super PartitionProducerStateProvider.ResponseHandle> consumer) {
        EXECUTOR.execute(
                () ->
                        consumer.accept(
                                new PartitionProducerStateProvider.ResponseHandle() {
                                    @Override
                                    public ExecutionState getConsumerExecutionState() {
                                        return ExecutionState.RUNNING;
                                    }

                                    @Override
                                    public Either<ExecutionState, Throwable> getProducerExecutionState() {
                                        return Either.Left(ExecutionState.RUNNING);
                                    }

                                    @Override
                                    public void cancelConsumption() {
                                        throw new IllegalStateException("cancelled");
                                    }

                                    @Override
                                    public void failConsumption(Throwable cause) {
                                        throw new IllegalStateException(cause);
                                    }
                                }));
    }

    private Object state() {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("connections", environment.getConnectionManager().getNumberOfActiveConnections());
        state.put(
                "buffers_in_use",
                buffers - environment.getNetworkBufferPool().getNumberOfAvailableMemorySegments());
        return state;
    }

    private static List<String> chain(Throwable error) {
        List<String> names = new ArrayList<>();
        for (Throwable each = error; each != null; each = each.getCause()) {
            names.add(each.getClass().getSimpleName() + ": " + each.getMessage());
        }
        return names;
    }

    /** A gate, and the thread that reads from it as a task does. */
    private static final class Gate extends Thread {
        private final SingleInputGate input;
        private final List<Channel> channels = new ArrayList<>();
        private final Map<Long, Set<Integer>> barriers = new HashMap<>();
        private final Set<Integer> ended = new HashSet<>();
        private long most;
        private long delay;
        private volatile long buffers;
        private Throwable error;

        Gate(SingleInputGate input) throws IOException {
            this.input = input;
            setDaemon(true);
            input.setChannelStateWriter(ChannelStateWriter.NO_OP);
            input.setup();
            for (int i = 0; i < input.getNumberOfInputChannels(); i++) {
                channels.add(new Channel());
            }
        }

        @Override
        public void run() {
            try {
                if (!input.getStateConsumedFuture().isDone()) {
                    input.finishReadRecoveredState();
                    while (!input.getStateConsumedFuture().isDone()) {
                        input.pollNext();
                    }
                    input.requestPartitions();
                }
                while (buffers < most) {
                    Optional<BufferOrEvent> next = input.getNext();
                    if (!next.isPresent()) {
                        break;
                    }
                    take(next.get());
                }
            } catch (Throwable thrown) {
                thrown.printStackTrace();
                error = thrown;
            }
        }

        private void take(BufferOrEvent next) throws Exception {
            InputChannelInfo info = next.getChannelInfo();
            int index = info.getInputChannelIdx();
            Channel channel = channels.get(index);
            if (next.isBuffer()) {
                buffers++;
                if (delay < 0) {
                    next.getBuffer().recycleBuffer();
                    return;
                }
                channel.take(next, (RemoteInputChannel) input.getChannel(index));
                if (delay > 0) {
                    Thread.sleep(delay / 1000, (int) (delay % 1000) * 1000);
                }
                return;
            }
            AbstractEvent event = next.getEvent();
            String name = event.getClass().getSimpleName();
            if (event instanceof CheckpointBarrier) {
                long id = ((CheckpointBarrier) event).getId();
                name += " " + id + " after " + channel.records();
                barriers.computeIfAbsent(id, key -> new HashSet<>()).add(index);
            } else if (event instanceof EndOfData) {
                input.acknowledgeAllRecordsProcessed(info);
            } else if (event instanceof EndOfPartitionEvent) {
                ended.add(index);
            }
            channel.events.add(name);
            // Aligned: a channel goes on when the barrier has come from all that have not ended.
            for (long id : new ArrayList<>(barriers.keySet())) {
                Set<Integer> arrived = new HashSet<>(barriers.get(id));
                arrived.addAll(ended);
                if (arrived.size() == channels.size()) {
                    for (int each : barriers.remove(id)) {
                        input.resumeConsumption(new InputChannelInfo(info.getGateIdx(), each));
                    }
                }
            }
        }

        Map<String, Object> result() {
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("channels", channels.stream().map(Channel::result).toArray());
            result.put("finished", input.isFinished());
            result.put("error", error == null ? Collections.emptyList() : chain(error));
            return result;
        }
    }

    /** What came through one channel. */
    private static final class Channel {
        private final RecordDeserializer<Record> deserializer =
                new SpillingAdaptiveSpanningRecordDeserializer<>(new String[] {System.getProperty("java.io.tmpdir")});
        private final Record record = new Record();
        private final Map<Integer, Long> counts = new TreeMap<>();
        private final Map<Integer, CRC32> sums = new TreeMap<>();
        private final List<String> events = new ArrayList<>();
        private long buffers;
        private long bytes;
        private int floating;
        private int backlog;

        void take(BufferOrEvent next, RemoteInputChannel channel) throws IOException {
            buffers++;
            bytes += next.getBuffer().readableBytes();
            floating = Math.max(floating, channel.unsynchronizedGetFloatingBuffersAvailable());
            backlog = Math.max(backlog, channel.getSenderBacklog());
            deserializer.setNextBuffer(next.getBuffer());
            DeserializationResult result;
            do {
                result = deserializer.getNextRecord(record);
                if (result.isFullRecord()) {
                    counts.merge(record.stream, 1L, Long::sum);
                    CRC32 sum = sums.computeIfAbsent(record.stream, key -> new CRC32());
                    sum.update(ByteBuffer.allocate(4).putInt(record.bytes.length).array());
                    sum.update(record.bytes);
                }
            } while (!result.isBufferConsumed());
        }

        long records() {
            return counts.values().stream().mapToLong(Long::longValue).sum();
        }

        Map<String, Object> result() {
            Map<String, Object> streams = new LinkedHashMap<>();
            counts.forEach((stream, count) -> streams.put("" + stream, new long[] {count, sums.get(stream).getValue()}));
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("buffers", buffers);
            result.put("bytes", bytes);
            result.put("streams", streams);
            result.put("events", events);
            result.put("floating", floating);
            result.put("backlog", backlog);
            return result;
        }
    }

    private static final class Record implements IOReadableWritable {
        private int stream;
        private byte[] bytes;

        @Override
        public void read(DataInputView in) throws IOException {
            stream = in.readInt();
            bytes = new byte[in.readInt()];
            in.readFully(bytes);
        }

        @Override
        public void write(DataOutputView out) {
            throw new UnsupportedOperationException();
        }
    }
}
