// Tables are sorted by a click on a header. Long ones have a field for words that a row must have.
for (const table of document.querySelectorAll('article table')) {
  const head = table.tHead && table.tHead.rows[0]
  const rows = table.tBodies.length ? [...table.tBodies[0].rows] : []
  if (!head || rows.length < 8) continue
  for (const header of head.cells) {
    const cells = rows.map(row => row.cells[header.cellIndex])
    const numbers = cells.map(cell => parseFloat(cell.textContent))
    // "29.1 M" is a number, "3x3" in a column of texts is none
    if (cells.every((cell, i) => !cell.textContent.trim() || !isNaN(numbers[i]))) {
      header.dataset.sortMethod = 'number'
      cells.forEach((cell, i) => { cell.dataset.sort = isNaN(numbers[i]) ? -1 : numbers[i] })
    }
  }
  new Tablesort(table, { descending: true })
  if (rows.length < 40) continue
  const field = Object.assign(document.createElement('input'), {
    className: 'table-filter', type: 'search', placeholder: 'Filter rows, for example: mask-rcnn coco',
  })
  field.setAttribute('aria-label', 'Filter rows')
  const count = Object.assign(document.createElement('output'), { className: 'table-count' })
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/)
    for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word))
    count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} rows`
  }
  field.addEventListener('input', filter)
  filter()
  const place = table.closest('.md-typeset__scrollwrap') || table
  place.before(field, count)
}
