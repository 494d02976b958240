/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy thread. */
#ifndef TERN_ENGINE_PROXY_H
#define TERN_ENGINE_PROXY_H

void *proxy_main(void *engine);

#endif
