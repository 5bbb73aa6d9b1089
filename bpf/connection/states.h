/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Connections inside whose states a table tells (bpf/states) instead of sessions: data packets are judged by it here, control packets
 * are the software path's, whose agent writes the table. crates/gateway/src/connection.rs is the same in Rust.
 */
#ifndef TUNNY_CONNECTION_STATES_H
#define TUNNY_CONNECTION_STATES_H

#include "packet.h"
#include "../states/states.h"
#include "../states/migrate.h"

/* What a state table knows the connection by, from the key of the pair. */
static __always_inline void state_key_of(struct flow *w)
{
	struct state_key *k = &w->state_key;
	__u64 a = w->key.w[0], b = w->key.w[1], other = 0;

	if (w->key.outer >> 8 != a >> 40)
		other = w->key.outer >> 8 | TUNNY_STATES_PAIR_OTHER;
	k->wide = w->v6 || other;
	k->w[0] = a;
	k->w[1] = b;
	if (!k->wide)
		return;
	if (w->v6) {
		k->w[2] = w->key.w[2];
		k->w[3] = w->key.w[3];
		k->w[4] = w->key.w[4];
	} else {
		k->w[0] = (a & ~0xffffffffULL) | (__u32)b;
		k->w[1] = 0;
		k->w[2] = 0xffffULL << 32 | (__u32)a;
		k->w[3] = 0;
		k->w[4] = 0xffffULL << 32 | b >> 32;
		other |= TUNNY_STATES_PAIR_V4;
	}
	k->w[5] = other;
}

/* Is the connection of a packet the software path's? Global, so that its stack is its own. */
__noinline int tunny_migrated(struct flow *w, __u32 bytes)
{
	return w ? migrated(&w->state_key, bytes) : 0;
}

/* A packet of a connection whose state a table has. GO or a verdict. */
static __always_inline int by_state(struct flow *w)
{
	__u32 kind = w->upper == UPPER_TCP ? states_kind(w->flags) : TUNNY_STATES_KIND_PLAIN, none;
	enum states_verdict verdict;
	__u64 said;

	state_key_of(w);
	said = tunny_state(&w->state_key);
	verdict = states_judge(said, kind);
	/* After the table: who finds no entry has found there what is in it. */
	if (unlikely(said & TUNNY_STATES_MIGRATE)) {
		w->state = said;
		if (tunny_migrated(w, verdict == STATES_ACCEPT ? w->bytes : 0))
			return PUNT + PUNT_FILTER_MIGRATED;
		said = w->state;
	}
	none = (__u32)said == TUNNY_STATES_NONE;
	if (verdict == STATES_ACCEPT) {
		if (unlikely(w->policy & TUNNY_POLICY_PATH_SESSIONS) && !tunny_probes.only)
			return PUNT + PUNT_PATH_SOFTWARE;
		return w->policy & TUNNY_POLICY_SOFTWARE ? PUNT + PUNT_SESSION_SOFTWARE : GO;
	}
	if (verdict == STATES_AGENT)
		return PUNT + (none ? PUNT_SESSION_NEW : PUNT_SESSION_CONTROL);
	if (kind == TUNNY_STATES_KIND_BAD)
		return DROP_FILTER_TCP_MALFORMED;
	if (none && kind == TUNNY_STATES_KIND_ACK && w->policy & TUNNY_POLICY_PICKUP)
		return PUNT + PUNT_SESSION_NEW;
	return none ? DROP_SESSION_STRAY : DROP_SESSION_INVALID;
}

/*
 * What is known of the packet's connection by w->key judges it: a session, or the state table. in: towards the inner end;
 * candidate: the line of its record, if it seems to have one, which is being loaded already. GO or a verdict.
 */
static __always_inline int by_connection(struct flow *w, int in, __u32 guess)
{
	struct tunny_session_record *r;
	__u32 line = guess;
	__u64 state;
	int why;

	w->line = 0;
	if (states_memory())
		return by_state(w);
	if (!line || !session_is(&w->key, line))
		line = tunny_session_find(&w->key);
	r = line ? session_line(line) : NULL;
	if (!r)
		return PUNT + PUNT_SESSION_NEW;
	state = READ_ONCE(r->state);
	why = session_verdict(w, r, state, in);
	if (why)
		return PUNT + (why & (PUNT_REASONS - 1));
	w->line = line;
	w->state = state;
	w->in = in;
	return GO;
}

/*
 * The session by which by_connection let a packet go on, if it was one, takes it. Once no stage can hand the packet over any more: the software
 * path, too, has sessions take what it gets.
 */
static __always_inline void connection_takes(const struct flow *w)
{
	struct tunny_session_record *r = w->line ? session_line(w->line) : NULL;

	if (r)
		take(w, r, w->state, w->in);
}

#endif
