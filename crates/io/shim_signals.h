/* What every C half does about signals. Included by each, in an object of its own. */
#ifndef HF_SHIM_SIGNALS_H
#define HF_SHIM_SIGNALS_H

#include <pthread.h>
#include <signal.h>

/* Threads that a library starts take no signals away from the program's own; those that an instruction causes cannot be put off. */
static void block_signals(sigset_t *before)
{
	sigset_t all;

	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	sigdelset(&all, SIGSEGV);
	pthread_sigmask(SIG_SETMASK, &all, before);
}

#endif
