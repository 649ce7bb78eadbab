// The site: README.md and the pages of docs/ as they are, with a search that works in the page.
import { copyFileSync, existsSync, statSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const root = fileURLToPath(new URL('../..', import.meta.url))
const repository = 'https://github.com/ratelimit-go/ratelimit'
const base = '/ratelimit/'

// pageOf returns the page that is made of a file of the repository, and "" if none is.
function pageOf(file) {
  const pages = { 'README.md': 'index.md', 'cmd/ratelimit/README.md': 'command.md' }
  const match = /^docs\/(\w+\.md)$/.exec(file) ?? /^((?:grpc|prom|otel)limit|examples)\/README\.md$/.exec(file)
  return pages[file] ?? (match ? match[1].replace(/(\.md)?$/, '.md') : '')
}

// target returns where a link of a file leads: to another page, or into the repository. A dead link fails the build.
function target(file, href) {
  if (href === 'https://ratelimit-go.github.io' + base) return '/'
  if (/^(\w+:|#)/.test(href)) return href
  const [to, fragment] = href.split('#')
  const linked = path.posix.join(path.posix.dirname(file), to)
  const anchor = fragment ? '#' + fragment : ''
  if (pageOf(linked)) return '/' + pageOf(linked) + anchor
  if (!existsSync(path.join(root, linked))) throw new Error(`${file}: a link to ${href}, which does not exist`)
  const kind = statSync(path.join(root, linked)).isDirectory() ? 'tree' : 'blob'
  return `${repository}/${kind}/main/${linked}${anchor}`
}

function links(md) {
  const badges = /\[!\[[^\]]*\]\(https:[^)]*\)\]\([^)]*\)\s*/g // pictures of other hosts
  md.core.ruler.before('inline', 'badges', (state) => {
    for (const token of state.tokens) if (token.type === 'inline') token.content = token.content.replace(badges, '')
  })
  md.core.ruler.push('links', (state) => {
    const file = path.relative(root, state.env.realPath ?? state.env.path)
    for (const token of state.tokens) if (token.type === 'code_block') Object.assign(token, { type: 'fence', info: 'txt' })
    for (const token of state.tokens.flatMap((t) => t.children ?? [])) {
      if (token.type === 'link_open') token.attrSet('href', target(file, token.attrGet('href')))
    }
  })
}

// vueOfSite finds Vue when pages are rendered, because they have no node_modules above them.
const vueOfSite = {
  name: 'vue-of-site',
  enforce: 'pre',
  resolveId: (id, _, { ssr }) => (ssr && /^vue(\/|$)/.test(id) ? { id, external: true } : undefined),
}

// slugify makes the anchor of a heading as GitHub does, so that links work there and here.
const slugify = (heading) => heading.toLowerCase().replace(/[^\p{L}\p{N} -]/gu, '').replaceAll(' ', '-')

export default defineConfig({
  title: 'ratelimit',
  description: 'Exact rate limits for Go, in memory, on Redis and on Postgres',
  lang: 'en-US',
  base,
  srcDir: root,
  srcExclude: ['!(cmd)/*/**', '{benchmarks,internal,serve,site,tools}/**', 'CHANGELOG.md'],
  outDir: './dist',
  rewrites: (file) => pageOf(file) || file,
  vite: { plugins: [vueOfSite] },
  head: [['link', { rel: 'icon', type: 'image/svg+xml', href: base + 'icon.svg' }]],
  markdown: { config: links, anchor: { slugify }, languageAlias: { caddyfile: 'nginx', haproxy: 'nginx', 'shell-session': 'console' } },
  themeConfig: {
    search: { provider: 'local' },
    outline: { level: [2, 3], label: 'On this page' },
    socialLinks: [{ icon: 'github', link: repository }],
    editLink: { pattern: repository + '/edit/main/:path', text: 'Edit this page' },
    nav: [
      { text: 'Playground', link: '/playground/', target: '_self' },
      { text: 'Reference', link: 'https://pkg.go.dev/github.com/ratelimit-go/ratelimit' },
    ],
    sidebar: [
      {
        text: 'Start',
        items: [
          { text: 'Overview', link: '/' },
          { text: 'Which algorithm?', link: '/#which-algorithm' },
          { text: 'Examples', link: '/examples' },
        ],
      },
      {
        text: 'Tasks',
        items: [
          { text: 'Limit an API', link: '/api' },
          { text: 'Plans in a database', link: '/api#plans-in-a-database' },
          { text: 'Limits in a database', link: '/api#limits-in-a-database' },
          { text: 'HTTP', link: '/http' },
          { text: 'Behind a load balancer', link: '/http#behind-a-load-balancer' },
          { text: 'gRPC', link: '/grpclimit' },
          { text: 'Protect a login', link: '/login' },
          { text: 'Call another service', link: '/client' },
          { text: 'Count LLM tokens', link: '/tokens' },
          { text: 'Concurrency limits', link: '/inflight' },
          { text: 'Limits in a YAML file', link: '/config' },
          { text: 'Combine limiters, recipes', link: '/composing' },
          { text: 'Test your program', link: '/testing' },
        ],
      },
      {
        text: 'Operate',
        items: [
          { text: 'Deploy and shut down', link: '/deploying' },
          { text: 'What must be closed', link: '/deploying#what-must-be-closed' },
          { text: 'Running on Redis', link: '/redis' },
          { text: 'When Redis does not answer', link: '/redis#when-redis-does-not-answer' },
          { text: 'Running on Postgres', link: '/postgres' },
          { text: 'How large a Redis', link: '/scaling#how-large-a-redis' },
          { text: 'When one Redis is not enough', link: '/scaling' },
          { text: 'Unblock a customer', link: '/composing#how-do-i-unblock-a-customer' },
          { text: 'Explain a denied request (429)', link: '/denied' },
          { text: 'See what limits do', link: '/observing' },
          { text: 'Prometheus', link: '/promlimit' },
          { text: 'OpenTelemetry', link: '/otellimit' },
          { text: 'The command ratelimit', link: '/command' },
          { text: 'Proxies and other languages', link: '/serve' },
        ],
      },
      {
        text: 'Reference',
        items: [
          { text: 'What it promises', link: '/promises' },
          { text: 'GCRA', link: '/promises#gcra' },
          { text: 'How fast it is', link: '/performance' },
          { text: 'Migrate from another library', link: '/migrating' },
          { text: 'What v1 promises', link: '/v1' },
        ],
      },
    ],
  },
  buildEnd({ outDir }) {
    copyFileSync(path.join(root, 'docs/llms.txt'), path.join(outDir, 'llms.txt'))
    copyFileSync(path.join(root, 'examples/playground/page/icon.svg'), path.join(outDir, 'icon.svg'))
  },
})
