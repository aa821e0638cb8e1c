/* Looking at a socket without sleeping. */
#ifndef ASYNCPS_WIRE_SOCKET_H
#define ASYNCPS_WIRE_SOCKET_H

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/socket.h>
#include <time.h>

static double aps_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Bytes received, 0 at the end of the stream, -1 when nothing came, -2 with errno on failure. */
static ptrdiff_t aps_look(int fd, void *place, size_t size, double look_s)
{
    const double until = aps_now() + look_s;
    for (;;) {
        const ssize_t count = recv(fd, place, size, MSG_DONTWAIT);
        if (count >= 0)
            return count;
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return -2;
        if (aps_now() >= until)
            return -1;
        sched_yield();
    }
}

static int aps_wake_at(int fd, int count)
{
    return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &count, sizeof count);
}

#endif
