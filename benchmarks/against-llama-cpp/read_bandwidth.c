// How fast this machine reads memory: a plain sum over a large array, on as many threads as the engines get.
// Usage: read_bandwidth THREADS; prints the median of nine passes in GB/s.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PASSES = 9, WORDS = 1 << 26 }; // 512 MiB: no cache holds it

static uint64_t *words;
static size_t threads;
static volatile uint64_t sink;
static pthread_barrier_t barrier;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static int by_time(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static void *sum(void *argument) {
    size_t index = (size_t)argument, share = WORDS / threads;
    const uint64_t *mine = words + index * share;
    static double times[PASSES];
    for (size_t i = 0; i < share; i++)
        words[index * share + i] = i;
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(&barrier);
        double begin = now();
        uint64_t total = 0;
        for (size_t i = 0; i < share; i++)
            total += mine[i];
        sink += total;
        pthread_barrier_wait(&barrier);
        if (index == 0)
            times[pass] = now() - begin;
    }
    if (index == 0) {
        qsort(times, PASSES, sizeof times[0], by_time);
        printf("%.2f\n", share * threads * 8 / times[PASSES / 2] / 1e9);
    }
    return NULL;
}

int main(int argc, char **argv) {
    threads = argc > 1 ? strtoul(argv[1], NULL, 10) : 2;
    words = aligned_alloc(4096, (size_t)WORDS * 8);
    if (threads == 0 || words == NULL)
        return 1;
    pthread_barrier_init(&barrier, NULL, threads);
    pthread_t *workers = calloc(threads, sizeof *workers);
    for (size_t i = 1; i < threads; i++)
        pthread_create(&workers[i], NULL, sum, (void *)i);
    sum((void *)0);
    for (size_t i = 1; i < threads; i++)
        pthread_join(workers[i], NULL);
    return 0;
}
