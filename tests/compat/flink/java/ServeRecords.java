package org.apache.flink.runtime.io.network.partition;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.ByteBuffer;
import java.util.concurrent.Executors;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.checkpoint.CheckpointOptions;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.io.network.api.CheckpointBarrier;
import org.apache.flink.runtime.io.network.api.StopMode;
import org.apache.flink.runtime.io.network.buffer.NetworkBufferPool;
import org.apache.flink.runtime.io.network.netty.NettyConfig;
import org.apache.flink.runtime.io.network.netty.NettyConnectionManager;
import org.apache.flink.runtime.jobgraph.IntermediateResultPartitionID;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBuf;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBufUtil;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;

/**
 * Flink's own NettyServer with one pipelined partition.
 *
 * <p>Arguments: subpartitions, records, the size of the largest, after how many records there is a barrier (0: never),
 * "finish" or "fail". Prints port and partition. Record i is (i * 37 % largest) bytes of the value i, for subpartition i
 * modulo their number. Ends when standard input does.
 */
public final class ServeRecords {
    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[0]);
        int records = Integer.parseInt(args[1]);
        int largest = Integer.parseInt(args[2]);
        int every = Integer.parseInt(args[3]);

        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        ResultPartitionManager manager = new ResultPartitionManager(1000, executor());
        NettyConnectionManager connections =
                new NettyConnectionManager(
                        manager,
                        (id, event) -> {
                            System.err.println("event " + event);
                            return true;
                        },
                        new NettyConfig(InetAddress.getLoopbackAddress(), port, 32768, 1, new Configuration()),
                        true);
        connections.start();

        ResultPartitionID id =
                new ResultPartitionID(new IntermediateResultPartitionID(), ExecutionAttemptID.randomId());
        NetworkBufferPool pool = new NetworkBufferPool(64, 32768);
        ResultSubpartition[] subpartitions = new ResultSubpartition[count];
        PipelinedResultPartition partition =
                new PipelinedResultPartition(
                        "test",
                        0,
                        id,
                        ResultPartitionType.PIPELINED_BOUNDED,
                        subpartitions,
                        count,
                        manager,
                        null,
                        () -> pool.createBufferPool(count + 1, 60, count, 10, 5));
        for (int i = 0; i < count; i++) {
            subpartitions[i] = new PipelinedSubpartition(i, 2, 32768, partition);
        }
        partition.setup();

        ByteBuf bytes = Unpooled.buffer();
        id.getPartitionId().writeTo(bytes);
        id.getProducerId().writeTo(bytes);
        System.out.println(port + " " + ByteBufUtil.hexDump(bytes));
        System.out.flush();

        for (int i = 0; i < records; i++) {
            int size = (int) (i * 37L % largest);
            ByteBuffer record = ByteBuffer.allocate(4 + size).putInt(size);
            while (record.hasRemaining()) {
                record.put((byte) i);
            }
            record.flip();
            partition.emitRecord(record, i % count);
            if (every > 0 && (i + 1) % every == 0) {
                CheckpointBarrier barrier =
                        new CheckpointBarrier(
                                (i + 1) / every, 0, CheckpointOptions.forCheckpointWithDefaultLocation());
                partition.broadcastEvent(barrier, false);
            }
        }
        if (args[4].equals("fail")) {
            partition.fail(new RuntimeException("out of luck"));
            manager.releasePartition(id, new RuntimeException("out of luck"));
        } else {
            partition.notifyEndOfData(StopMode.DRAIN);
            partition.getAllDataProcessedFuture().get();
            System.out.println("processed");
            System.out.flush();
            partition.finish();
        }
        while (System.in.read() >= 0) {}
        connections.shutdown();
        System.exit(0);
    }

    private static org.apache.flink.util.concurrent.ScheduledExecutor executor() {
        return new org.apache.flink.util.concurrent.ScheduledExecutorServiceAdapter(
                Executors.newSingleThreadScheduledExecutor(
                        runnable -> {
                            Thread thread = new Thread(runnable);
                            thread.setDaemon(true);
                            return thread;
                        }));
    }
}
