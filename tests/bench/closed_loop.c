/* closed_loop SECONDS: many clients of 127.0.0.1, each of which sends its requests and waits for all answers to them.
 *
 * One thread, and for each client little work between an answer and its next request: a driver in Python takes as long as
 * the broker, which meanwhile collects requests and handles them together, so it hides what independent clients cost.
 *
 * Standard input has a client after the other: four native 32-bit numbers (its kind, counted from 0; the port it connects to; its
 * requests; their bytes together) and the requests. Every answer is 4 bytes of its length, big-endian, and so many bytes, as Kafka's are.
 *
 * Prints, for each kind, a line: rounds that were answered, the seconds that they took together with all others, and the median
 * and the 99th percentile of a round in us. Lasts until every client has had an answer. Exit code 1: a connection broke.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS_MAX = 10000, KINDS_MAX = 16, EVENTS = 512 };

struct client {
    int socket;
    uint32_t kind, requests, size, sent, pending; /* pending: answers of this round */
    uint32_t header, left;                        /* bytes of the next length that have come; bytes of the answer that have not */
    uint8_t length[4];
    char *data;
    double began;
    bool answered, waits_for_room;
};

struct kind {
    double *rounds; /* seconds each */
    size_t count, room;
};

static struct client clients[CLIENTS_MAX];
static struct kind kinds[KINDS_MAX];
static int poller;
static uint32_t client_count, kind_count, unanswered;

static void fail(const char *what) {
    fprintf(stderr, "closed_loop: %s: %s\n", what, errno ? strerror(errno) : "the broker has closed the connection");
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void watch(struct client *client, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = client};
    if (epoll_ctl(poller, operation, client->socket, &event)) fail("epoll_ctl");
}

/* The rest of its requests, as far as the socket takes them. */
static void send_rest(struct client *client) {
    while (client->sent < client->size) {
        ssize_t taken = send(client->socket, client->data + client->sent, client->size - client->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken < 0 && errno != EAGAIN) fail("send");
        if (taken < 0) break;
        client->sent += (uint32_t)taken;
    }
    bool waits = client->sent < client->size;
    if (waits != client->waits_for_room) watch(client, EPOLL_CTL_MOD, waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
    client->waits_for_room = waits;
}

static void begin_round(struct client *client) {
    client->pending = client->requests;
    client->sent = 0;
    client->began = now();
    send_rest(client);
}

static void end_round(struct client *client) {
    struct kind *kind = &kinds[client->kind];
    if (kind->count == kind->room) {
        kind->room = kind->room ? 2 * kind->room : 1 << 16;
        kind->rounds = realloc(kind->rounds, kind->room * sizeof *kind->rounds);
        if (!kind->rounds) fail("realloc");
    }
    kind->rounds[kind->count++] = now() - client->began;
    unanswered -= !client->answered;
    client->answered = true;
}

static void receive(struct client *client) {
    static uint8_t buffer[1 << 18];
    errno = 0;
    ssize_t got = recv(client->socket, buffer, sizeof buffer, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) fail("recv");
    for (uint8_t *at = buffer, *end = buffer + got; at < end;) {
        if (client->header < 4) {
            client->length[client->header++] = *at++;
            if (client->header < 4) continue;
            memcpy(&client->left, client->length, 4);
            client->left = ntohl(client->left);
        } else {
            uint32_t step = client->left < (size_t)(end - at) ? client->left : (uint32_t)(end - at);
            client->left -= step;
            at += step;
        }
        if (client->left) continue;
        client->header = 0;
        if (--client->pending == 0) {
            end_round(client);
            begin_round(client);
        }
    }
}

static void read_clients(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint32_t head[4];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        if (client_count == CLIENTS_MAX || head[0] >= KINDS_MAX) errno = E2BIG, fail("clients");
        struct client *client = &clients[client_count++];
        *client = (struct client){.kind = head[0], .requests = head[2], .size = head[3], .data = malloc(head[3])};
        if (!client->data || fread(client->data, head[3], 1, stdin) != 1) fail("standard input");
        if (kind_count <= client->kind) kind_count = client->kind + 1;
        address.sin_port = htons((uint16_t)head[1]);
        client->socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client->socket, (struct sockaddr *)&address, sizeof address)) fail("connect");
        int on = 1;
        setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        watch(client, EPOLL_CTL_ADD, EPOLLIN);
    }
    unanswered = client_count;
}

static int ascending(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "closed_loop SECONDS\n"), 2;
    double seconds = atof(argv[1]);
    poller = epoll_create1(0);
    read_clients();
    double began = now();
    for (uint32_t i = 0; i < client_count; i++) begin_round(&clients[i]);
    struct epoll_event events[EVENTS];
    while (now() - began < seconds || unanswered) {
        int count = epoll_wait(poller, events, EVENTS, 1000);
        for (int i = 0; i < count; i++) {
            struct client *client = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) send_rest(client);
            if (events[i].events & ~(uint32_t)EPOLLOUT) receive(client);
        }
    }
    double took = now() - began;
    for (uint32_t i = 0; i < kind_count; i++) {
        struct kind *kind = &kinds[i];
        qsort(kind->rounds, kind->count, sizeof *kind->rounds, ascending);
        size_t last = kind->count - 1, at = kind->count * 99 / 100;
        printf("%zu %.6f %.1f %.1f\n", kind->count, took, kind->rounds[kind->count / 2] * 1e6, kind->rounds[at < last ? at : last] * 1e6);
    }
    return 0;
}
