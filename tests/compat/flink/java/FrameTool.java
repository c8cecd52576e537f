// Flink's own encoders and decoders on a line protocol, so that a test can hold ours against them. One request a line on
// standard input, one answer a line: words with tabs between them, bytes in hex. In this package because Flink's messages are
// visible to it only. Fields are printed by reflection: the releases from 1.16 to 2.3 name and number them differently.
package org.apache.flink.runtime.io.network.netty;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;

import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.runtime.event.AbstractEvent;
import org.apache.flink.runtime.execution.CancelTaskException;
import org.apache.flink.runtime.executiongraph.ExecutionAttemptID;
import org.apache.flink.runtime.io.network.NetworkClientHandler;
import org.apache.flink.runtime.io.network.api.serialization.EventSerializer;
import org.apache.flink.runtime.io.network.buffer.Buffer;
import org.apache.flink.runtime.io.network.partition.PartitionNotFoundException;
import org.apache.flink.runtime.io.network.partition.ProducerFailedException;
import org.apache.flink.runtime.io.network.partition.ResultPartitionID;
import org.apache.flink.runtime.io.network.partition.consumer.InputChannelID;
import org.apache.flink.runtime.jobgraph.IntermediateResultPartitionID;
import org.apache.flink.shaded.netty4.io.netty.buffer.ByteBuf;
import org.apache.flink.shaded.netty4.io.netty.buffer.Unpooled;
import org.apache.flink.shaded.netty4.io.netty.channel.embedded.EmbeddedChannel;

public final class FrameTool {
    private static final ClassLoader LOADER = FrameTool.class.getClassLoader();

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            String answer;
            try {
                answer = "ok\t" + answer(words);
            } catch (Throwable error) {
                Throwable root = error;
                while (root.getCause() != null) {
                    root = root.getCause();
                }
                answer = "error\t" + root.getClass().getName() + "\t" + text(root.getMessage());
            }
            out.println(answer);
        }
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "from-client":
                return received(new EmbeddedChannel(new NettyMessage.NettyMessageDecoder()), words[1], words[2]);
            case "from-server":
                return received(new EmbeddedChannel(new NettyMessageClientDecoderDelegate(client())), words[1], words[2]);
            case "error":
                return hex(sent(error(throwable(words[1], decoded(words[2]), words[3]), words[4])));
            case "event":
                return event(bytes(words[1]));
            case "compress":
                return compression(words[1], bytes(words[2]), true);
            case "decompress":
                return compression(words[1], bytes(words[2]), false);
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    /** What a decoder makes of bytes that come in pieces of some size. */
    private static String received(EmbeddedChannel channel, String hex, String piece) throws Exception {
        byte[] all = bytes(hex);
        int size = Integer.parseInt(piece);
        for (int start = 0; start < all.length; start += size) {
            channel.writeInbound(Unpooled.copiedBuffer(all, start, Math.min(size, all.length - start)));
            channel.checkException();
        }
        List<String> found = new ArrayList<>();
        for (Object message = channel.readInbound(); message != null; message = channel.readInbound()) {
            found.add(described(message));
        }
        return String.join("\t", found);
    }

    private static NetworkClientHandler client() {
        // Knows no receiver: payloads of data buffers are passed over, those of events are read.
        return (NetworkClientHandler)
                Proxy.newProxyInstance(LOADER, new Class<?>[] {NetworkClientHandler.class}, (proxy, method, arguments) -> null);
    }

    private static byte[] sent(NettyMessage message) throws IOException {
        EmbeddedChannel channel = new EmbeddedChannel(new NettyMessage.NettyMessageEncoder());
        channel.writeOutbound(message);
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (ByteBuf part = channel.readOutbound(); part != null; part = channel.readOutbound()) {
            part.readBytes(all, part.readableBytes());
        }
        return all.toByteArray();
    }

    private static NettyMessage error(Throwable cause, String receiver) {
        return receiver.isEmpty()
                ? new NettyMessage.ErrorResponse(cause)
                : new NettyMessage.ErrorResponse(cause, InputChannelID.fromByteBuf(Unpooled.wrappedBuffer(bytes(receiver))));
    }

    private static Throwable throwable(String kind, String message, String partition) {
        switch (kind) {
            case "IOException":
                return new IOException(message);
            case "caused":
                Throwable outer = new IOException(message, new IllegalStateException("cause", new RuntimeException("root")));
                outer.addSuppressed(new IllegalArgumentException("suppressed", new Error("below")));
                return outer;
            case "ProducerFailedException":
                return new ProducerFailedException(new RuntimeException(message, new IOException("cause")));
            case "PartitionNotFoundException":
                ByteBuf id = Unpooled.wrappedBuffer(bytes(partition));
                return new PartitionNotFoundException(
                        new ResultPartitionID(
                                IntermediateResultPartitionID.fromByteBuf(id), ExecutionAttemptID.fromByteBuf(id)));
            case "CancelTaskException":
                return new CancelTaskException(message);
            case "rich":
                return new Rich(message);
            default:
                throw new IllegalArgumentException("no throwable " + kind);
        }
    }

    /** Has a field of each kind that a Java object stream knows. */
    private static final class Rich extends RuntimeException {
        private static final long serialVersionUID = 1L;
        private final boolean flag = true;
        private final byte tiny = 1;
        private final char letter = 'x';
        private final double real = 1.5;
        private final float small = 2.5f;
        private final long large = 1L << 40;
        private final short shorter = 3;
        private final int[] numbers = {1, 2, 3};
        private final long[][] nested = {{1}, {2, 3}, null};
        private final Object[] things = {"a", 1, null, Thread.State.NEW, String.class};
        private final java.util.HashMap<String, Object> map = new java.util.HashMap<>();
        private final java.util.ArrayList<Object> list = new java.util.ArrayList<>();
        private final java.util.Date date = new java.util.Date(0);
        private final java.math.BigDecimal decimal = new java.math.BigDecimal("1.25");
        private final java.time.Instant instant = java.time.Instant.EPOCH; // externalizable, by proxy
        private final Rich self = this;

        Rich(String message) {
            super(message);
            map.put("list", list);
            map.put("long", "x".repeat(70000));
            list.add(new StringBuilder("builder"));
            list.add(map);
        }
    }

    private static String event(byte[] serialized) throws IOException {
        ByteBuffer buffer = ByteBuffer.wrap(serialized);
        AbstractEvent event = EventSerializer.fromSerializedEvent(buffer, LOADER);
        Buffer again = EventSerializer.toBuffer(event, false);
        byte[] bytes = new byte[again.readableBytes()];
        again.getNioBufferReadable().get(bytes);
        return String.join("\t", event.getClass().getSimpleName(), again.getDataType().name(), hex(bytes), text(event.toString()));
    }

    private static String compression(String codec, byte[] data, boolean compress) throws Exception {
        Class<?> factories = Class.forName("org.apache.flink.runtime.io.compression.BlockCompressionFactory");
        Object factory = null;
        for (Method method : factories.getMethods()) {
            if (method.getName().equals("createBlockCompressionFactory")) {
                Class<?> kind = method.getParameterTypes()[0];
                factory = method.invoke(null, kind == String.class ? codec : kind.getMethod("valueOf", String.class).invoke(null, codec));
            }
        }
        byte[] out = new byte[Math.max(1 << 20, 2 * data.length)];
        Object one = factories.getMethod(compress ? "getCompressor" : "getDecompressor").invoke(factory);
        Class<?>[] types = {byte[].class, int.class, int.class, byte[].class, int.class};
        Class<?> face = Class.forName("org.apache.flink.runtime.io.compression.Block" + (compress ? "Compressor" : "Decompressor"));
        int size = (int) face.getMethod(compress ? "compress" : "decompress", types).invoke(one, data, 0, data.length, out, 0);
        return hex(java.util.Arrays.copyOf(out, size));
    }

    private static String described(Object message) throws IllegalAccessException {
        List<String> fields = new ArrayList<>();
        fields.add(message.getClass().getSimpleName());
        for (Field field : message.getClass().getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers())) {
                field.setAccessible(true);
                fields.add(field.getName() + "=" + described(field.getName(), field.get(message)));
            }
        }
        return String.join(" ", fields);
    }

    private static String described(String name, Object value) {
        if (value instanceof Throwable) {
            Throwable error = (Throwable) value;
            return error.getClass().getName() + ":" + text(error.getMessage());
        }
        if (value instanceof Buffer) {
            ByteBuffer content = ((Buffer) value).getNioBufferReadable();
            byte[] bytes = new byte[content.remaining()];
            content.get(bytes);
            return hex(bytes);
        }
        if (value instanceof ByteBuffer) {
            ByteBuffer content = ((ByteBuffer) value).duplicate();
            content.rewind();
            byte[] bytes = new byte[content.remaining()];
            content.get(bytes);
            return hex(bytes);
        }
        if (value instanceof AbstractEvent) {
            return ((AbstractEvent) value).getClass().getName();
        }
        return String.valueOf(value).replace(" ", "");
    }

    /** Text that may hold anything, in a form that has no blanks. */
    private static String text(String value) {
        return value == null
                ? "-"
                : Base64.getEncoder().encodeToString(value.getBytes(StandardCharsets.UTF_16BE));
    }

    private static String decoded(String value) {
        return value.equals("-") ? null : new String(Base64.getDecoder().decode(value), StandardCharsets.UTF_16BE);
    }

    private static String hex(byte[] data) {
        StringBuilder out = new StringBuilder(2 * data.length);
        for (byte one : data) {
            out.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return out.toString();
    }

    private static byte[] bytes(String hex) {
        byte[] out = new byte[hex.length() / 2];
        for (int i = 0; i < out.length; i++) {
            out[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return out;
    }
}
