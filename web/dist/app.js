document.querySelector("#model").textContent="";fetch("v1/models").then(r=>r.json()).then(m=>{document.querySelector("#model").textContent=m.data?.map(x=>x.id).join(", ")??""}).catch(()=>{});
