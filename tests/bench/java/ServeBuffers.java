package org.apache.flink.runtime.io.network.partition;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.io.disk.BatchShuffleReadBufferPool;
import org.apache.flink.runtime.io.network.api.StopMode;
import org.apache.flink.runtime.io.network.buffer.BufferPool;
import org.apache.flink.runtime.io.network.buffer.NetworkBufferPool;
import org.apache.flink.runtime.io.network.netty.NettyConfig;
import org.apache.flink.runtime.io.network.netty.NettyConnectionManager;
import org.apache.flink.runtime.jobgraph.IntermediateResultPartitionID;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBuf;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBufUtil;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;
import org.apache.flink.util.concurrent.ScheduledExecutorServiceAdapter;

/**
 * Flink's own NettyServer, with as many finished partitions as a benchmark wants, of one subpartition each.
 *
 * <p>Arguments: a directory for files, the size of a buffer, how many buffers all pipelined partitions may have. Prints
 * the port. A line on standard input is a command; a line answers it.
 *
 * <ul>
 *   <li>make KIND PARTITIONS BUFFERS: partitions with so many full buffers each; answers their ids (hex). KIND: pipelined
 *       (in memory), sort (the file of a sort-merge shuffle), hash (a file of each subpartition)
 *   <li>drop: release all of them
 * </ul>
 */
public final class ServeBuffers {
    private static final int WRITING = 1024; // buffers that a blocking partition may use while it is written

    private final ResultPartitionManager manager =
            new ResultPartitionManager(
                    10_000, new ScheduledExecutorServiceAdapter(Executors.newSingleThreadScheduledExecutor(ServeBuffers::daemon)));
    private final ExecutorService readers = Executors.newFixedThreadPool(2, ServeBuffers::daemon);
    private final List<ResultPartition> partitions = new ArrayList<>();
    private final File directory;
    private final int size;
    private final NetworkBufferPool pool;
    private final BatchShuffleReadBufferPool readPool;
    private int files;

    private ServeBuffers(String directory, int size, int most) {
        this.directory = new File(directory);
        this.size = size;
        pool = new NetworkBufferPool(most + WRITING, size);
        readPool = new BatchShuffleReadBufferPool(64 << 20, size); // the default: taskmanager.memory.framework.off-heap.batch-shuffle.size
    }

    public static void main(String[] args) throws Exception {
        ServeBuffers server = new ServeBuffers(args[0], Integer.parseInt(args[1]), Integer.parseInt(args[2]));
        NettyConfig config = new NettyConfig(InetAddress.getLoopbackAddress(), 0, 32768, 1, new Configuration());
        NettyConnectionManager connections =
                new NettyConnectionManager(server.manager, (id, event) -> true, config, true);
        System.out.println(connections.start());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("make")) {
                System.out.println(server.make(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3])));
            } else {
                server.drop();
                System.out.println("dropped");
            }
        }
        System.exit(0);
    }

    private String make(String kind, int count, int buffers) throws Exception {
        List<String> ids = new ArrayList<>();
        byte[] content = new byte[size];
        new Random(1).nextBytes(content);
        for (int i = 0; i < count; i++) {
            ResultPartitionID id =
                    new ResultPartitionID(new IntermediateResultPartitionID(), ExecutionAttemptID.randomId());
            ResultPartition partition = partition(kind, id, buffers);
            partition.setup();
            partitions.add(partition);
            for (int n = 0; n < buffers; n++) {
                partition.emitRecord(ByteBuffer.wrap(content), 0);
            }
            partition.notifyEndOfData(StopMode.DRAIN);
            partition.finish();
            if (!kind.equals("pipelined")) {
                partition.close(); // its buffers are for the next one
            }
            ByteBuf bytes = Unpooled.buffer();
            id.getPartitionId().writeTo(bytes);
            id.getProducerId().writeTo(bytes);
            ids.add(ByteBufUtil.hexDump(bytes));
        }
        return String.join(" ", ids);
    }

    private ResultPartition partition(String kind, ResultPartitionID id, int buffers) throws IOException {
        if (kind.equals("sort")) {
            return new SortMergeResultPartition(
                    "bench", 0, id, ResultPartitionType.BLOCKING, 1, 1, readPool, readers, manager,
                    path(), null, () -> writing());
        }
        ResultSubpartition[] subpartitions = new ResultSubpartition[1];
        if (kind.equals("hash")) {
            BoundedBlockingResultPartition partition =
                    new BoundedBlockingResultPartition(
                            "bench", 0, id, ResultPartitionType.BLOCKING, subpartitions, 1, manager, null, () -> writing());
            // Its default, taskmanager.network.blocking-shuffle.type: file
            subpartitions[0] = BoundedBlockingSubpartition.createWithFileChannel(0, partition, new File(path()), size, false);
            return partition;
        }
        int most = buffers + 2;
        PipelinedResultPartition partition =
                new PipelinedResultPartition(
                        "bench", 0, id, ResultPartitionType.PIPELINED_BOUNDED, subpartitions, 1, manager, null,
                        () -> pool.createBufferPool(most, most, 1, Integer.MAX_VALUE, 0));
        subpartitions[0] = new PipelinedSubpartition(0, 2, size, partition);
        return partition;
    }

    private BufferPool writing() throws IOException {
        return pool.createBufferPool(WRITING, WRITING, 1, Integer.MAX_VALUE, 0);
    }

    private String path() {
        return new File(directory, "partition-" + files++).getPath();
    }

    private void drop() {
        for (ResultPartition partition : partitions) {
            manager.releasePartition(partition.getPartitionId(), null);
            partition.close();
        }
        partitions.clear();
    }

    private static Thread daemon(Runnable runnable) {
        Thread thread = new Thread(runnable);
        thread.setDaemon(true);
        return thread;
    }
}
